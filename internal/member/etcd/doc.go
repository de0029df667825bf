// Package etcd keeps the members of a cluster in etcd, which has the consensus
// that drtmx does not. It is the client; package embedded runs a server.
//
// Keys begin with /drtmx/ and the cluster's name:
//
//	/drtmx/NAME/map             the map
//	/drtmx/NAME/servers/INDEX   a live server's registration, attached to its lease
//
// where INDEX has three decimal digits. Values are those of package member.
//
// The map is swapped by a transaction that compares the key's revision with
// that of the map which was read, and an index is taken by one that requires
// that its key is not there. A revision of the package's is one of etcd, and a
// lease's term is the revision in which it was taken.
//
// Reads are linearizable. A handle remembers the highest revision and the
// identity that etcd has answered with, and refuses to go on with one that has
// lost data ([member.ErrReplaced]).
package etcd
