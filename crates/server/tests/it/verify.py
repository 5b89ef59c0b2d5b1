"""Reads cases from standard input and judges each with the official package; exits with 1 on a surprise."""

import base64
import json
import sys

try:
    from standardwebhooks import Webhook, WebhookVerificationError
except ImportError:
    sys.exit("the package standardwebhooks is missing: run `scripts/setup test`")

cases = json.load(sys.stdin)
for case in cases:
    try:
        Webhook(case["secret"]).verify(base64.b64decode(case["body"]), case["headers"])
        accepted = True
    except WebhookVerificationError as error:
        accepted = str(error)
    if (accepted is True) is not case["accepted"]:
        sys.exit(f"{case['name']}: {accepted}")
print(f"{len(cases)} cases")
