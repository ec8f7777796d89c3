"""Burst workers as invocations of an AWS Lambda function.

backend   the user's settings, the driver's handle, the courier's connection
handler   the entry point that Lambda calls
package   builds the archive for a Lambda function
"""
