from trtllm_serve_cli.launch.supervisor.supervisor import main

main()
