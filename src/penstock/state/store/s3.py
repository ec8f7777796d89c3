"""S3 for the store: options, Spark's s3a settings, hints for errors, and conditional puts.

A small file takes one request, with pyarrow's `allow_delayed_open`. A request without a reply for some
seconds is retried: twice by AWS's client, and then by `Files`.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any
from urllib.parse import parse_qsl, unquote

S3_SCHEMES = ("s3", "s3a", "s3n")
_FLAGS = (
    "allow_bucket_creation",
    "allow_bucket_deletion",
    "allow_delayed_open",
    "force_virtual_addressing",
)
"""Boolean options that the query part of a URI may set."""
TROUBLES = {
    ("NO_SUCH_BUCKET", "NoSuchBucket"): "create the bucket, or check its name and endpoint",
    ("ACCESS_DENIED", "AccessDenied"): "give these keys, or this role, s3:GetObject, s3:PutObject and "
    "s3:DeleteObject on the folder and s3:ListBucket on the bucket",
    ("INVALID_ACCESS_KEY_ID", "InvalidAccessKeyId", "UserNotFound", "SIGNATURE_DOES_NOT_MATCH",
     "SignatureDoesNotMatch"): "check the keys: spark.hadoop.fs.s3a.access.key "
    "and .secret.key, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY on the driver and all executors",
    ("ExpiredToken", "EXPIRED_TOKEN", "InvalidToken", "INVALID_TOKEN"): "the session token has expired: "
    "restart the flow with a new one, or give the machines an IAM role",
    ("status 301)", "PermanentRedirect", "AuthorizationHeaderMalformed"): "the bucket is in another "
    "region: set spark.hadoop.fs.s3a.endpoint.region",
    ("NoCredentials", "Unable to locate credentials"): "set keys: spark.hadoop.fs.s3a.access.key and "
    ".secret.key, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the machine an IAM role",
}  # fmt: skip
"""Texts in permanent errors of S3 -> hint."""
PASSING = {
    (
        "TimeTooSkewed",
        "TIME_TOO_SKEWED",
    ): "set the clock of this machine (NTP): it differs from the store's",
    (
        "NETWORK_CONNECTION",
        "Could not connect",
        "EndpointConnectionError",
    ): "check that the endpoint "
    "(spark.hadoop.fs.s3a.endpoint) is right and answers, with http:// if it has no TLS",
    (
        "SLOW_DOWN",
        "SlowDown",
        "status 503)",
    ): "the store is overloaded: run fewer flows on it, or use longer epochs",
}
"""Texts in errors of S3 that may be temporary -> hint if they are not."""
_SECONDS = ("connect_timeout", "request_timeout")
_WAYS: dict[str, Any] = {
    # One request for a small file, instead of three for a multipart upload.
    "allow_delayed_open": True,
    "connect_timeout": 3.0,
    # Seconds without a byte.
    "request_timeout": 5.0,
}
"""Default options of the S3 file system, which the folder's URI can override."""


def s3_arguments(
    address: str, options: tuple[tuple[str, Any], ...] = ()
) -> tuple[str, dict[str, Any]]:
    """The path of a folder, beginning with its bucket, and the arguments for pyarrow's S3 file system. The
    query part of the URI overrides `options`.

    >>> s3_arguments("me:secret@bucket/flow%20a/?region=eu-west-1")[0]
    'bucket/flow a'
    """
    path, _, query = address.partition("?")
    bucket, _, folder = path.partition("/")
    keys, _, bucket = bucket.rpartition("@")
    arguments = _WAYS | dict(options)
    if keys:
        user, _, secret = keys.partition(":")
        arguments |= {"access_key": unquote(user), "secret_key": unquote(secret)}
    for name, value in parse_qsl(query):
        flag, seconds = name in _FLAGS, name in _SECONDS
        arguments[name] = value.lower() == "true" if flag else float(value) if seconds else value
    return f"{bucket}/{unquote(folder)}".rstrip("/"), arguments


def hint_for(refused: Exception, among: Mapping[tuple[str, ...], str]) -> str:
    """The hint for an error of S3; empty if the error is not one of these."""
    message = str(refused)
    return next((hint for words, hint in among.items() if any(w in message for w in words)), "")


_unconditional: set[str] = set()
"""Endpoints known to this process to ignore the condition of a put."""


class ConditionalPuts:
    """Puts of small files that succeed only if the file does not exist. Of two concurrent puts, one succeeds.

    pyarrow does not support them, so they use boto3, with the same keys and endpoint.
    """

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._arguments = dict(arguments)
        self._endpoint = str(arguments.get("endpoint_override", ""))
        self._client: Any = None

    @staticmethod
    def possible(arguments: Mapping[str, Any]) -> bool:
        """Whether boto3 is installed and supports all these arguments of pyarrow's file system."""
        beyond = {"role_arn", "anonymous", "proxy_options"} & {k for k, v in arguments.items() if v}
        return not beyond and find_spec("boto3") is not None

    @property
    def honoured(self) -> bool:
        """Whether the store respects the condition, as far as is known."""
        return self._endpoint not in _unconditional

    def put(self, path: str, data: bytes) -> None:
        """Write the file unless it exists. Raises an `OSError` if the store fails for another reason. If
        `honoured` is False afterwards, the file may not have been written."""
        # A store that accepts the same file twice ignores the condition.
        if self._put(path, data) and self._put(path, data):
            _unconditional.add(self._endpoint)

    def _put(self, path: str, data: bytes) -> bool:
        from botocore.exceptions import BotoCoreError, ClientError

        bucket, _, key = path.partition("/")
        try:
            self._open().put_object(Bucket=bucket, Key=key, Body=data, IfNoneMatch="*")
        except ClientError as refused:
            status = refused.response["ResponseMetadata"]["HTTPStatusCode"]
            if status == 501:  # this store does not support conditions
                _unconditional.add(self._endpoint)
            if status in (412, 501):
                return False
            raise OSError(str(refused)) from refused
        except BotoCoreError as failed:
            raise OSError(str(failed)) from failed
        return True

    def _open(self) -> Any:
        if self._client is None:
            import boto3
            from botocore.config import Config

            option = self._arguments.get
            endpoint = option("endpoint_override")
            virtual = option("force_virtual_addressing") or not endpoint
            self._client = boto3.client(
                "s3",
                aws_access_key_id=option("access_key"),
                aws_secret_access_key=option("secret_key"),
                aws_session_token=option("session_token"),
                region_name=option("region"),
                endpoint_url=f"{option('scheme') or 'https'}://{endpoint}" if endpoint else None,
                verify=option("tls_ca_file_path"),
                config=Config(
                    connect_timeout=option("connect_timeout"),
                    read_timeout=option("request_timeout"),
                    retries={"mode": "standard", "total_max_attempts": 3},
                    s3={"addressing_style": "virtual" if virtual else "path"},
                ),
            )
        return self._client


_CARRIED = {
    "access.key": "access_key",
    "secret.key": "secret_key",
    "session.token": "session_token",
    "endpoint.region": "region",
}
_NOT_CARRIED = (
    "aws.credentials.provider",
    "assumed.role.arn",
    "encryption.algorithm",
    "encryption.key",
    "server-side-encryption-algorithm",
    "server-side-encryption.key",
    "proxy.host",
    "signing-algorithm",
    "requester.pays.enabled",
    "custom.signers",
)
"""Settings of s3a that affect access, but are not passed to pyarrow."""
S3A_SETTINGS = (
    *_CARRIED,
    "endpoint",
    "connection.ssl.enabled",
    "path.style.access",
    *_NOT_CARRIED,
)
"""Settings of s3a that `s3_options` reads."""


def s3_options(settings: Mapping[str, str]) -> tuple[tuple[tuple[str, Any], ...], list[str]]:
    """Convert Hadoop's s3a settings, by their names after `fs.s3a.`, to arguments of pyarrow's S3 file
    system. Also returns the names of those that cannot be passed on.

    >>> s3_options({"endpoint": "http://minio:9000", "access.key": "me", "proxy.host": "p"})
    ((('access_key', 'me'), ('endpoint_override', 'minio:9000'), ('scheme', 'http')), ['proxy.host'])
    """
    options: dict[str, Any] = {
        to: settings[name] for name, to in _CARRIED.items() if settings.get(name)
    }
    endpoint = settings.get("endpoint", "")
    if endpoint:
        scheme, separator, address = endpoint.rpartition("://")
        secure = settings.get("connection.ssl.enabled", "true").lower() != "false"
        options["endpoint_override"] = address.rstrip("/")
        options["scheme"] = scheme if separator else "https" if secure else "http"
        # pyarrow uses path-style addressing by default, Hadoop only if it is set.
        if settings.get("path.style.access", "true").lower() == "false":
            options["force_virtual_addressing"] = True
    missing = [name for name in _NOT_CARRIED if settings.get(name)]
    return tuple(sorted(options.items())), missing
