<?php

// Standard Webhooks: whether a request was signed with a secret (`whsec_…`). By the library where it is installed
// (`composer install`), else by what PHP brings along: HMAC-SHA256 over `id.timestamp.body`, one of the signatures must fit.

declare(strict_types=1);

const TOLERANCE_SECONDS = 300;

/** @param array<string, string> $headers names in lower case */
function is_signed(string $secret, array $headers, string $body): bool
{
    if (!class_exists(\StandardWebhooks\Webhook::class)) {
        return is_signed_by_hand($secret, $headers, $body);
    }
    try {
        (new \StandardWebhooks\Webhook($secret))->verify($body, $headers);
        return true;
    } catch (\Exception) {
        return false;
    }
}

/** @param array<string, string> $headers */
function is_signed_by_hand(string $secret, array $headers, string $body): bool
{
    $id = $headers['webhook-id'] ?? '';
    $timestamp = $headers['webhook-timestamp'] ?? '';
    if (!ctype_digit($timestamp) || abs(time() - (int) $timestamp) > TOLERANCE_SECONDS) {
        return false;
    }
    $key = base64_decode(preg_replace('/^whsec_/', '', $secret), true);
    $expected = 'v1,' . base64_encode(hash_hmac('sha256', "$id.$timestamp.$body", $key, true));
    foreach (explode(' ', $headers['webhook-signature'] ?? '') as $given) {
        if (hash_equals($expected, $given)) {
            return true;
        }
    }
    return false;
}
