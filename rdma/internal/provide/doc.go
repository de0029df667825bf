// Package provide has what the providers of the fabric share: the part of an
// endpoint that is the same for all, the checks of batches and calls, the queue
// of a poller, spinning before sleeping, accepting sockets, and the lobby of
// peers in their handshakes.
package provide
