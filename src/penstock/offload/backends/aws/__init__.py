"""Burst workers as invocations of an AWS Lambda function.

backend   the user's settings, the driver's handle, the courier's connection
handler   what Lambda calls
package   the archive that a Lambda function is made of
"""
