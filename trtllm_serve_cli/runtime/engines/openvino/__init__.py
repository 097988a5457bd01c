"""OpenVINO GenAI as an engine."""
