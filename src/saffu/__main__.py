from saffu.cli import main

main()
