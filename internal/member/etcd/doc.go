// Package etcd stores the members of a cluster in etcd, which provides
// consensus. It is the client; package embedded runs a server.
//
// Most keys begin with /drtmx/ and the cluster's name:
//
//	/drtmx/NAME/map             the map
//	/drtmx/NAME/servers/INDEX   a live server's registration, attached to its lease
//	/drtmx/NAME/durable/INDEX   how far the server's log was durable
//
// where INDEX has three decimal digits. Values are those of package member. The
// secret of the cluster, which clients have no use for, is apart, so that etcd can
// keep it from them:
//
//	/drtmx.secret/NAME          see [Store.Secret]
//
// A transaction notes how far a log was durable if the holder's registration is still
// there. Watchers are not notified of it.
//
// A transaction swaps the map if the key's revision equals that of the map
// which was read. A transaction takes an index if its key does not exist. A
// revision of this package is a revision of etcd, and a lease's term is the
// revision in which it was taken.
//
// Reads are linearizable. A handle remembers the identity and the highest
// revision of etcd's answers, and refuses an etcd that has lost data
// ([member.ErrReplaced]).
package etcd
