<?php

// A client application in PHP: hosts two tools, lets an agent listen for an event, fires it, and follows the run.
//
//     composer install
//     RONDO_KEY=… php app.php            plays it once; `php app.php serve` only hosts the tools, until Ctrl-C
//
// RONDO_URL is http://127.0.0.1:8080/v1 unless set, MODEL a scripted one that costs nothing, PORT a free one. Start the
// service with RONDO_ALLOW_PRIVATE_WEBHOOKS=127.0.0.0/8, since the tools are on this machine. Needs no extension.

declare(strict_types=1);

define('RONDO', getenv('RONDO_URL') ?: 'http://127.0.0.1:8080/v1');
define('KEY', getenv('RONDO_KEY') ?: exit("RONDO_KEY is needed\n"));
define('MODEL', getenv('MODEL') ?: 'scripted/shop');
const SCRIPT = [
    ['tool_calls' => [['name' => 'order_lookup', 'arguments' => ['order_id' => '7']]]],
    ['tool_calls' => [['name' => 'order_note', 'arguments' => ['order_id' => '7', 'text' => 'Two lamps: pack them well.']]]],
    'Order 7 has a note for the packers.',
];
const TEXT = ['type' => 'string'];
const TOOLS = [
    'order_lookup' => ['Finds an order with its lines.', ['order_id' => TEXT]],
    'order_note' => ['Writes a note on an order, for the packers.', ['order_id' => TEXT, 'text' => TEXT]],
];
const ENDINGS = ['run.completed', 'run.incomplete', 'run.failed', 'run.cancelled'];

/** @return resource the open response, whatever its status */
function open_response(string $method, string $path, ?array $body = null, array $headers = [])
{
    $headers = ['Authorization: Bearer ' . KEY, 'Content-Type: application/json', ...$headers];
    $options = ['method' => $method, 'header' => $headers, 'ignore_errors' => true, 'timeout' => 60];
    if ($body !== null) {
        $options['content'] = json_encode($body);
    }
    return fopen(RONDO . $path, 'r', false, stream_context_create(['http' => $options]));
}

function ask(string $method, string $path, ?array $body = null): array
{
    $response = open_response($method, $path, $body);
    $status = (int) explode(' ', stream_get_meta_data($response)['wrapper_data'][0])[1];
    return ['status' => $status] + json_decode((string) stream_get_contents($response), true);
}

function ask_or_fail(string $method, string $path, ?array $body = null): array
{
    $answer = ask($method, $path, $body);
    return isset($answer['code']) ? throw new RuntimeException("$path: {$answer['code']}, {$answer['detail']}") : $answer;
}

/** A tool's secret is shown when it is new; for one that is there already, a new one is made. */
function register(int $port, string $state): void
{
    $secrets = [];
    foreach (TOOLS as $name => [$description, $properties]) {
        $parameters = ['type' => 'object', 'properties' => $properties, 'required' => array_keys($properties)];
        $url = "http://127.0.0.1:$port/$name";
        $made = ask_or_fail('PUT', "/tools/$name", compact('description', 'parameters', 'url'));
        $secrets[$name] = $made['secret'] ?? ask_or_fail('POST', "/tools/$name/rotate-secret")['secret'];
    }
    file_put_contents("$state/secrets.json", json_encode($secrets));
}

/** The id of the agent `order-notes`, made anew or brought to what stands here. */
function agent(): string
{
    $body = [
        'name' => 'order-notes', 'model' => MODEL, 'debounce_seconds' => 0, 'config' => ['script' => SCRIPT],
        'system_prompt' => 'You help the packers. Look at the order, and write a note on it.',
        'event_triggers' => ['order.paid'], 'allowed_tools' => array_keys(TOOLS),
    ];
    $made = ask('POST', '/agents', $body);
    if (($made['code'] ?? '') !== 'agent_exists') {
        return $made['id'];
    }
    $known = ask_or_fail('GET', '/agents?limit=200')['data'];
    $named = array_filter($known, fn (array $one): bool => $one['name'] === $body['name']);
    $id = array_values($named)[0]['id'];
    ask_or_fail('PATCH', "/agents/$id", $body);
    return $id;
}

/** Prints what the run does, and comes back where the line was cut; gives the run at its end. */
function follow(string $run_id): array
{
    for ($last = '0'; ;) {
        $stream = open_response('GET', "/runs/$run_id/events", null, ["Last-Event-ID: $last"]);
        while (($line = fgets($stream)) !== false) {
            [$name, $value] = explode(': ', rtrim($line, "\n"), 2) + [1 => ''];
            $last = $name === 'id' ? $value : $last;
            if ($name !== 'data') {
                continue;
            }
            $event = json_decode($value, true);
            echo $event['type'], ' ', $event['tool'] ?? '', "\n";
            if (in_array($event['type'], ENDINGS, true)) {
                return $event['run'];
            }
        }
    }
}

function free_port(): int
{
    $socket = stream_socket_server('tcp://127.0.0.1:0');
    return (int) explode(':', stream_socket_get_name($socket, false))[1];
}

/** @return resource the web server with the tools, as a child */
function serve_tools(int $port, string $state)
{
    $quiet = [1 => ['file', '/dev/null', 'w'], 2 => ['file', "$state/server.log", 'a']];
    $command = [PHP_BINARY, '-S', "127.0.0.1:$port", __DIR__ . '/tools.php'];
    $server = proc_open($command, $quiet, $pipes, null, ['EXAMPLE_STATE' => $state] + getenv());
    while (!($socket = @stream_socket_client("tcp://127.0.0.1:$port"))) {
        proc_get_status($server)['running'] || exit("the tools cannot listen on port $port\n");
        usleep(20_000);
    }
    fclose($socket);
    return $server;
}

$state = sys_get_temp_dir() . '/rondo-example-' . bin2hex(random_bytes(8));
mkdir($state, 0700);
$port = (int) getenv('PORT') ?: free_port();
register($port, $state);
$server = serve_tools($port, $state);
if (function_exists('pcntl_signal')) { // else a signal ends this process alone, and not its child
    pcntl_async_signals(true);
    pcntl_signal(SIGTERM, fn () => exit(0));
    pcntl_signal(SIGINT, fn () => exit(0));
}
register_shutdown_function(function () use ($server, $state): void {
    proc_terminate($server);
    array_map('unlink', glob("$state/*"));
    rmdir($state);
});
echo "tools on http://127.0.0.1:$port\n";
while (($argv[1] ?? '') === 'serve' && proc_get_status($server)['running']) {
    usleep(100_000);
}
$agent_id = agent();
$fired = ask_or_fail('POST', '/triggers', [
    'event' => 'order.paid', 'tenant' => ['type' => 'shop', 'id' => 1], 'subject' => ['type' => 'order', 'id' => 7],
    'payload' => ['order_id' => '7'], 'context' => ['user' => 42],
])['fired'];
$own = array_values(array_filter($fired, fn (array $one): bool => $one['agent_id'] === $agent_id));
$run = follow($own[0]['run_id']);
echo 'answer: ', $run['output'], "\n";
exit($run['status'] === 'completed' ? 0 : 1);
