// Package tcp is the fabric over any network. At the server an agent, one
// goroutine for each connection, performs the verbs: a batch is one write by
// the client, and the answers to all that has arrived are one write back. An
// RPC takes the same connection. READs are in order: the agent loads words
// ascending and the first one once more for [rdma.WR.Tail].
//
// # Capabilities
//
// When a connection is made, after authentication, the server grants it a
// capability of 128 random bits for each region, with the rights that the
// region was registered with, less what [Options.Rights] withholds from that
// client. Every verb names one. A capability of another connection, of an
// earlier life of the server, or a guessed one is refused like an access out
// of bounds: the request completes with rdma.StatusAccess, [Stats] counts it,
// and it has no other effect. An rkey only names the capability within the
// client.
//
// # Security
//
// With [Options.TLS] connections are TLS 1.3 and both sides show certificates.
// Without, only loopback addresses are served and dialled, unless
// [Options.Insecure] is set. A peer in plain text is a client of the role that it
// states, or a data server if it knows the secret of the cluster (see
// [Provider.SetSecret]): the server sends a nonce, and expects a message
// authentication code of it.
//
// # Flow control
//
// A client has at most windowBytes of requests in flight. The buffers of the two
// kernels hold that much even if the server does not read. Wait and FinishCall
// send the rest of a batch, and larger requests, as answers arrive. So the two
// sides can never wait for each other to read. The server holds at most one chunk
// of answers and one response for each connection. It drops a client that does
// not read them after [Options.StallTimeout]; only the agent of that client waits.
//
// # Loss
//
// Kernel keepalive detects peers that have vanished. A waiting client pings the
// agent after [Options.KeepAlive] of silence, and gives up the connection after
// as much silence again. An agent answers pings while handlers are busy.
package tcp
