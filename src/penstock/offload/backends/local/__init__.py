"""Burst workers as processes on the driver's machine.

backend      the user's settings, the driver's handle, the courier's connection
service      the process that couriers ask
pool         which burst workers are idle or busy, when one is started or ended
fork_server  the process that forks them, and what each of them runs

courier ──Flight──► service ──pipe──► burst worker
                       └──pipe──► fork server ──fork──┘
"""
