// Package multi is a provider that is made of other providers: shm, verbs and
// tcp. An endpoint listens on each fabric that its address names, and grants
// the same regions under the same keys on all of them. A client dials the best
// fabric that both sides have.
//
// An address names the fabrics of one endpoint; see [Address]. Shared memory
// is the best fabric, but the name of a socket is valid only on its own host.
// If an address names a network as well, the server behind the socket must
// confirm that it is the server at that network address; otherwise the client
// takes the network. See [Provider.Confirm].
//
// A client never changes between a fabric that reads in order and one that
// does not, because a database decides once for each server whether blocks
// need their checksums.
package multi
