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
// and nobody is harmed. An rkey only names the capability within the client.
//
// # Security
//
// With [Options.TLS] connections are TLS 1.3 and both sides show certificates.
// Without, only loopback addresses are served and dialled, unless
// [Options.Insecure] is set.
//
// # Flow control
//
// A client has at most windowBytes of requests in flight, which the buffers
// of the two kernels take whatever the server does; the rest of a batch, and
// larger requests, follow from Wait and FinishCall as answers come in. So
// neither side can wait for the other to read. The server holds for each
// connection no more than a chunk of answers and one response. A client that
// does not read them is dropped after [Options.StallTimeout]; only its own
// agent waits for it.
//
// # Loss
//
// Kernel keepalive finds peers that vanished. A client that waits asks the
// agent for a sign of life after [Options.KeepAlive] without one, and gives
// the connection up after as long again; an agent answers while handlers are
// busy.
package tcp
