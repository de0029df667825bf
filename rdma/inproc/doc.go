// Package inproc is the fabric inside one process: endpoints and clients
// share a [Network], and an address is a name in it. It serves tests,
// embedding and simulation.
//
// A verb is performed by the client's goroutine, so a READ costs the server
// no CPU, as on a NIC; nothing but a posted work request touches the server's
// memory. An RPC crosses to goroutines of the endpoint, called pollers, which
// run the handler; both sides spin briefly and then park.
package inproc
