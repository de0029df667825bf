// Package verbs is the fabric over RDMA devices: reliable connected queue
// pairs of libibverbs, set up through librdmacm. READ, WRITE, CAS and FAA are
// the device's own, so a server's processor takes no part in them; calls are
// SENDs. It is built with the tag verbs and links to both libraries; without
// the tag the package has the same shape and New fails.
//
// # One round
//
// Post fills a list of work requests and hands it to the device with one
// doorbell and one crossing into C; only the last, and some on the way in long
// lists, ask for a completion, which accounts for all before it. The device
// writes into staging memory of the connection, mapped and registered, from
// which completions copy into the caller's buffers: no Go memory is ever
// registered, and a buffer is never written once Wait has returned.
//
// The device promises no order among the bytes of a READ, so InOrder is false
// and servers keep checksums. The engine requires that every 8-byte word is
// read whole; all supported hardware guarantees that.
//
// # Memory and protection
//
// A server registers each segment of a region as a memory region of the device,
// when a client first asks for it, in a protection domain of that client. A
// client is a process, which identifies itself by 128 random bits. The memory
// region allows remote READ, and remote WRITE and atomics only where the
// region's grant does. A remote key is thus good for the connections of one
// client and names one segment, addressed by the offset in the region, never by
// an address of the server.
//
// A segment that one connection was granted to write is registered again, with a key
// of its own. The server names that key only to connections with the same grant. But
// the device accepts it from every connection of the same client, until the client's
// last connection ends. Revoke destroys the queue pair of one connection. So nothing
// of that connection takes effect any more, however late, and no connection of this
// package uses the key of another. A client that does so on purpose can still write,
// over its other connections, what one of them was granted: Revoke does not protect
// from it. To lock out such a client, revoke all its connections.
//
// A connection asks for keys and bounds as it needs them, and itself refuses
// requests outside them, so that a mistaken request gets its error and harms
// nothing. Until the server has answered, a batch that needs the answer stays in
// flight, and so do those posted after it. The server's device refuses the requests
// of a peer that does not check them, and puts the queue pair in error: the connection is
// then down.
//
// Atomics of a device are atomic among each other, and not against those of
// the processor: words that peers may change by CAS or FAA must be changed by
// the server through the device too, with Swap: over a connection of the endpoint to
// itself. So a data server changes the headers of the leaves that it has granted
// clients to write.
//
// # Roles
//
// A peer is a client of the role that it states, or a data server if it knows the
// secret of the cluster (see [Provider.SetSecret]). A request of a data server is
// refused with a nonce, and the next one proves with a message authentication code of
// it that the sender knows the secret. All of this travels in the private data of the
// connection manager, so that an endpoint holds nothing for a peer that has proved
// nothing. It does not remember which answers it has had either: a host that overhears
// one can use it, in the name of the same process, for challengeTime. Who can overhear
// the network can read the data anyway.
//
// # Messages
//
// Calls, and queries about regions, travel in fragments of one size into
// receive buffers of that size. A side sends as many as it has credits for;
// they come back with the fragments of the other side, or by themselves when
// they run low.
//
// # Sleeping
//
// A waiting caller polls for a few microseconds and lets other goroutines run
// in between. It then requests an event of the completion queue, polls once
// more, and sleeps in the runtime's network poller. The connection manager of a
// dead peer reports its death; otherwise the transport's retries of requests in
// flight detect it. A caller that waits with nothing in flight sends an empty
// WRITE from time to time, and five silent seconds with one in flight end the
// connection.
package verbs
