"""The start-up hook: what an installed `.pth` file runs at interpreter start.

`zz_swift_diloco_hook.pth` looks for a word in the command line and ends there in every process that is not ms-swift's;
`start` tells the process's role (`roles`); `prepare` acts on it; `argv` translates; `plugins` finds entry points;
`cpu_switch` switches the CPU platform on. `entry` holds the plugin that ms-swift loads, alone in its folder: ms-swift
puts that folder on `sys.path`.
"""
