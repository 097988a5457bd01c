"""The `openvino` engine kind, which runs models with OpenVINO GenAI."""
