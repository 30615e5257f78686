from saffu.cli.main import main

main()
