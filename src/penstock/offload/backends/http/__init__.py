"""Burst workers behind a URL: any platform that runs containers and scales them with the requests.

backend    the user's settings, and the courier's connection
app        the ASGI app that a container runs
messages   headers of requests and answers, and their signatures

courier ──POST, signed──► the platform's load balancer ──► a container with `app` and the flow's plan
"""
