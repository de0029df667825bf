// Package hosting has what programs of this module tell a data server, and a program
// that embeds one does not: the place that a membership store has given it, where its data
// comes from, and what tests do in its stead.
package hosting

import (
	"context"
	"time"

	"drtmx/internal/clock"
	"drtmx/internal/datadir"
	"drtmx/internal/placement"
	"drtmx/rdma"
)

// Options are all of it. They reach a server through server.Config.Hosted.
type Options struct {
	Place
	Origin
	Work
}

// Place is what is known of the place of a data server in its cluster. The zero value
// is that of a server whose place no other process can have.
type Place struct {
	// Epoch counts the starts of the server with its state; 0 means 1.
	Epoch uint32
	// Incarnation identifies this start of the server; 0 means a random number.
	Incarnation uint64
	// Registered, if not nil, reads from the membership store which incarnation
	// of a data server is registered now, 0 if none is. It must not answer from
	// a cache. Another incarnation proves that the memory of the one before is
	// gone; nothing else does, but word from the server itself.
	Registered func(ctx context.Context, server placement.Server) (incarnation uint64, err error)
	// Empty, if not nil, asks the process that has started all data servers of
	// the cluster to replace them by new ones, which are empty. It returns
	// before this server ends.
	Empty func() error

	// Opened, if set, is the data directory of the server, which the caller has opened
	// with the directory's identity of this server. The server closes it, and its
	// constructor does if it fails.
	Opened *datadir.Dir
	// Holds, if set, reports whether this process still has the server's place in
	// the membership store. No answer of a durable server leaves while it does
	// not: another process may have the place.
	Holds func() bool
	// Left, if set, returns for how long this process certainly has the place, from
	// a moment after the call on; 0 if that is not certain. Clients believe what
	// they READ in the memory of a durable server for no longer. It must not wait.
	// nil means that no other process can take the place.
	Left func() time.Duration

	// Host is the number of the place where this process is: the copies of its log
	// are at the hosts after it. It is the number of the server unless another server's
	// process has taken this one over. A host keeps no copies of data servers that are
	// there.
	Host *int
	// Kept, if set, reports whether a host can keep a copy now; the first of those that
	// can have one. Without it all can.
	Kept func(host int) bool
	// DialHost, if set, connects to a host that is to keep a copy of the log, with the
	// role of a data server; without it the data servers of the same numbers keep them.
	DialHost func(ctx context.Context, host int) (rdma.Conn, error)
	// Target, if set, returns the host to which the server is to go, -1 if to none: it
	// gets one copy more. Without it that is the host of the server's own number.
	Target func() int
	// Leaves, if set, reports whether copies are to leave a host: it gets no new ones,
	// and those that it has stay only until others are in sync, or the host has ended.
	Leaves func(host int) (leaves, ended bool)
	// Zone, if set, returns the name of what may fail together with a host, empty if
	// that is not known: copies are kept in as many zones as there are.
	Zone func(host int) string
}

// Origin is where the data of a server comes from that is loaded into an empty
// directory.
type Origin struct {
	// Restore says that a restore fills the data directory: it may be marked as that
	// of a restore that has not ended, which no other server opens.
	Restore bool
	// After is a tick that the clock of a durable server must have passed when it
	// starts: that of the data which is loaded into it.
	After clock.Tick
}

// Work is what a server leaves to its caller.
type Work struct {
	// ManualTraining turns background training off, so that models change only
	// when the caller calls Train.
	ManualTraining bool
}
