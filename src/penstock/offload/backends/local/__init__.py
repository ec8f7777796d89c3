"""Burst workers as processes on the driver's machine.

backend      the user's settings, the driver's handle, the courier's connection
service      the process that takes requests from couriers
pool         starts and ends burst workers, and tracks which are idle or busy
fork_server  the process that forks them, and the loop that each of them runs

courier ──Flight──► service ──pipe──► burst worker
                       └──pipe──► fork server ──fork──┘
"""
