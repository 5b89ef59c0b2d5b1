// Reads cases from standard input and judges each with the official package; exits with 1 on a surprise.
const { Webhook, WebhookVerificationError } = require("standardwebhooks");

const cases = JSON.parse(require("node:fs").readFileSync(0, "utf8"));
for (const { name, secret, headers, body, accepted } of cases) {
  let verdict = true;
  try {
    new Webhook(secret).verify(Buffer.from(body, "base64"), headers);
  } catch (error) {
    if (!(error instanceof WebhookVerificationError)) throw error;
    verdict = error.message;
  }
  if ((verdict === true) !== accepted) {
    console.error(`${name}: ${verdict}`);
    process.exit(1);
  }
}
console.log(`${cases.length} cases`);
