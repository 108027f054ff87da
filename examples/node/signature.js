// Standard Webhooks: whether a request was signed with a secret (`whsec_…`). By the library where it is installed
// (`npm ci`), else by what Node brings along: HMAC-SHA256 over `id.timestamp.body`, one of the signatures must fit.
import { createHmac, timingSafeEqual } from "node:crypto";

const TOLERANCE_SECONDS = 300;
const library = await import("standardwebhooks").catch(() => null);

export function isSigned(secret, headers, body) {
  if (library === null) return byHand(secret, headers, body);
  try {
    new library.Webhook(secret).verify(body, headers);
    return true;
  } catch {
    return false;
  }
}

export function byHand(secret, headers, body) {
  const id = headers["webhook-id"] ?? "", timestamp = headers["webhook-timestamp"] ?? "";
  const age = Math.abs(Date.now() / 1000 - Number(timestamp));
  if (!/^\d+$/.test(timestamp) || age > TOLERANCE_SECONDS) return false;
  const key = Buffer.from(secret.replace(/^whsec_/, ""), "base64");
  const expected = createHmac("sha256", key).update(`${id}.${timestamp}.`).update(body).digest();
  return (headers["webhook-signature"] ?? "").split(" ").some((signature) => {
    const [version, value] = signature.split(",");
    const given = Buffer.from(value ?? "", "base64");
    return version === "v1" && given.length === expected.length && timingSafeEqual(given, expected);
  });
}
