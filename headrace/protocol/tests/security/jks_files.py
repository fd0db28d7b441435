"""Stores that keytool of Java 17 made: a key with its certificate, and the same certificate to trust.

The key is P-256, the certificate for CN=localhost, localhost and 127.0.0.1, valid until 2126.

    keytool -genkeypair -storetype JKS -keyalg EC -groupname secp256r1 -dname CN=localhost -validity 36500 \\
        -ext SAN=dns:localhost,ip:127.0.0.1 -storepass changeit -keypass keysecret
    keytool -importcert -storetype JKS -storepass changeit
"""

from __future__ import annotations

import base64
from typing import Final

STORE_PASSWORD: Final = "changeit"
KEY_PASSWORD: Final = "keysecret"
KEYSTORE: Final = base64.b64decode(
    "/u3+7QAAAAIAAAABAAAAAQAGc2VydmVyAAABogcurU4AAAB/MH0wDgYKKwYBBAEqAhEBAQUABGstQrCVK1Qd3+6e0aiZoXwVEfgo"
    "PboNPkbIGjBrCMJKAwO3tKKF5nxTKHnJss/hTfP4QUFcTQ+cTbQ/CoypZw8Bb4uXeGf0PlEyVIZCz/pll4q5zdYdIWn1QDA9aWoH"
    "NbVuvqAovx0VbLNATAAAAAEABVguNTA5AAABYjCCAV4wggEEoAMCAQICCQDk85umIYC/hjAKBggqhkjOPQQDAjAUMRIwEAYDVQQD"
    "Ewlsb2NhbGhvc3QwIBcNMjYxMTIzMDY1MzQ4WhgPMjEyNjEwMzAwNjUzNDhaMBQxEjAQBgNVBAMTCWxvY2FsaG9zdDBZMBMGByqG"
    "SM49AgEGCCqGSM49AwEHA0IABKK5Z9OzWJNUbu5bsndWqaUW3BcTX5Axn8vT8PRBWQe519SSRMg2N+CeU4luIqSlDMV1IzMPbfq1"
    "ZjPmTlL+X6ujPTA7MB0GA1UdDgQWBBTwp3Zr8FvirPb1njwvPVnd0uPtFzAaBgNVHREEEzARgglsb2NhbGhvc3SHBH8AAAEwCgYI"
    "KoZIzj0EAwIDSAAwRQIgFuEhac088i3NXxFf3WoJKe0EbLtZAlwdqoLWCxoBGB8CIQDJVIm0yCuKBNkD4o1S79wJvmjK8dGkkLnc"
    "gnv/XxMhobBi03iIndCny0xiIito1sM96OW3"
)
TRUSTSTORE: Final = base64.b64decode(
    "/u3+7QAAAAIAAAABAAAAAgACY2EAAAGiBy69bgAFWC41MDkAAAFiMIIBXjCCAQSgAwIBAgIJAOTzm6YhgL+GMAoGCCqGSM49BAMC"
    "MBQxEjAQBgNVBAMTCWxvY2FsaG9zdDAgFw0yNjExMjMwNjUzNDhaGA8yMTI2MTAzMDA2NTM0OFowFDESMBAGA1UEAxMJbG9jYWxo"
    "b3N0MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEorln07NYk1Ru7luyd1appRbcFxNfkDGfy9Pw9EFZB7nX1JJEyDY34J5TiW4i"
    "pKUMxXUjMw9t+rVmM+ZOUv5fq6M9MDswHQYDVR0OBBYEFPCndmvwW+Ks9vWePC89Wd3S4+0XMBoGA1UdEQQTMBGCCWxvY2FsaG9z"
    "dIcEfwAAATAKBggqhkjOPQQDAgNIADBFAiAW4SFpzTzyLc1fEV/dagkp7QRsu1kCXB2qgtYLGgEYHwIhAMlUibTIK4oE2QPijVLv"
    "3Am+aMrx0aSQudyCe/9fEyGhrwjbx1Kk5+JzUIXn23TAZXa5mrs="
)
