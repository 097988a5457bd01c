"""The engine kind `openvino`: OpenVINO GenAI."""
