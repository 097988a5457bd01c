"""The engine kind `openvino`, which runs models with OpenVINO GenAI."""
