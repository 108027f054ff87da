<?php

// The two tools, for PHP's built-in web server; `app.php` starts it and says in the environment where the secrets stand.

declare(strict_types=1);

if (is_file(__DIR__ . '/vendor/autoload.php')) {
    require __DIR__ . '/vendor/autoload.php';
}
require __DIR__ . '/signature.php';

const ORDERS = ['7' => ['id' => '7', 'lines' => [['article' => 'lamp', 'count' => 2]]]];

// `arguments` is what a model wrote; who asks stands in tenant, subject, member and context
function order_lookup(array $call): array
{
    $order = ORDERS[$call['arguments']['order_id']] ?? null;
    return $order ? [200, ['items' => [$order]]] : [404, ['message' => 'There is no such order. Known is: 7.']];
}

function order_note(array $call): array
{
    return [200, ['saved' => true, 'by' => $call['context']['user']]];
}

function answer(string $name, string $body): array
{
    $state = getenv('EXAMPLE_STATE');
    $secrets = json_decode((string) file_get_contents("$state/secrets.json"), true);
    if (!isset($secrets[$name])) {
        return [404, ['message' => 'no such tool']];
    }
    if (!is_signed($secrets[$name], array_change_key_case(getallheaders()), $body)) {
        return [401, ['message' => 'not signed']];
    }
    // by Idempotency-Key: a call that comes twice is carried out once; a real application keeps this in its database
    $kept = "$state/" . hash('sha256', (string) $_SERVER['HTTP_IDEMPOTENCY_KEY']);
    if (!is_file($kept)) {
        file_put_contents($kept, json_encode($name(json_decode($body, true)['data'])));
    }
    return json_decode((string) file_get_contents($kept), true);
}

[$status, $value] = answer(trim((string) $_SERVER['REQUEST_URI'], '/'), (string) file_get_contents('php://input'));
http_response_code($status);
header('content-type: application/json');
echo json_encode($value);
