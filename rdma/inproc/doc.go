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
// With [Options.Latency] set, completions and responses are delayed on
// [Options.Clock] as on a link of that speed. Batches in flight on several
// connections overlap.
//
// # Modelled machines
//
// [Network.SetNode] makes endpoints behave as data servers with slower machines: verbs and
// requests queue at their NICs and cores. See [Node].
//
// # Adversary
//
// With [Options.Faults] set, the network uses every freedom of the contract:
// words of a READ in any order with other goroutines running in between, work
// requests in any order and performed at any moment between Post and the end of
// Wait, requests delivered twice or late, connections that drop before, while
// or after a request is handled. The client's side draws all choices from a
// separate stream for each connection, so a single-threaded client schedule
// replays from [Options.Seed]. Work requests are only ever performed inside
// Post and Wait: nothing is written to a buffer after Wait has returned.
//
// [Network.Pause], [Network.Resume] and [Network.Kill] script the failures of
// whole servers. A paused server's memory still answers READs.
// [Network.FailDials] makes dials fail as they would without descriptors, route
// or name service, while the servers and existing connections continue.
//
// # Identity
//
// [Network.As] sets the identity of dialled connections. A connection of a
// plain Dial may do everything, since code in the server's process could do so
// anyway.
package inproc
