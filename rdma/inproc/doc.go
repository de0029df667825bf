// Package inproc is the fabric inside one process: endpoints and clients
// share a [Network], and an address is a name in it. It serves tests,
// embedding and simulation.
//
// A verb is performed by the client's goroutine, so a READ costs the server
// no CPU, as on a NIC; nothing but a posted work request touches the server's
// memory. An RPC crosses to goroutines of the endpoint, called pollers, which
// run the handler and OnDisconnect; both sides spin briefly and then park.
// Neither may close its own endpoint: Close waits for them.
//
// # Latency
//
// With [Options.Latency] set, completions and responses are held back on
// [Options.Clock] as a link of that speed would. Batches in flight on several
// connections overlap.
//
// # Adversary
//
// With [Options.Faults] set, the network uses every freedom the contract
// leaves it: words of a READ in any order with other goroutines running in
// between, work requests in any order and performed at any moment between
// Post and the end of Wait, requests delivered twice or late, connections that
// drop before, while or after a request is handled. All choices are drawn on
// the client's side from a stream of its own for each connection, so a
// single-threaded client schedule replays from [Options.Seed]. Work requests
// are only ever performed inside Post and Wait: nothing is written to a
// buffer after Wait has returned.
//
// [Network.Pause], [Network.Resume] and [Network.Kill] script the failures of
// whole servers. A paused server's memory still answers READs.
// [Network.FailDials] makes dials fail as they would without descriptors, route
// or name service, while the servers and their connections live on.
//
// # Identity
//
// [Network.As] gives what is dialled an identity. A plain Dial may do
// everything: whoever runs in the server's process could do it anyway.
package inproc
