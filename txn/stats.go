package txn

import (
	"context"

	"drtmx/index"
	"drtmx/internal/exec"
	"drtmx/internal/placement"
	"drtmx/rdma"
	"drtmx/txn/stats"
)

// Cause is the reason why an attempt was aborted.
type Cause uint8

// Causes of aborted attempts.
const (
	CauseLocked  Cause = iota // a writer had locked a row or gap
	CauseRow                  // a row read had changed by commit
	CauseGap                  // a range or an absence had changed by commit
	CauseFence                // the partition's primary was replaced or restarted
	CauseRemote               // a participant voted no
	CauseCatalog              // a server has another version of the catalogue
	CauseLate                 // the commit came so late that its proofs were too old
	CauseCount                // the number of causes
)

func (c Cause) String() string { return exec.Cause(c).String() }

// SessionStats are the counters of one session. All fields only grow.
type SessionStats struct {
	Fabric  rdma.Counters      // summed over the session's connections
	Rounds  uint64             // network rounds: concurrent batches to several servers count once
	Proving uint64             // those of Rounds in which Views only validated what they had read
	Aborts  [CauseCount]uint64 // aborted attempts
	Commits uint64             // Views, Snapshots, Updates and Calls that returned nil
	// OneSided of Commits were Updates that were made without a data server: see tables.Rolex.
	OneSided uint64
	// Snapshots is how many began. Overtaken of them were Views that writers had
	// invalidated too often. Widened of them began again: their body read at a server
	// that had not answered in time when the snapshot chose its time.
	Snapshots uint64
	Overtaken uint64
	Widened   uint64
}

// OneSided returns how many Updates of the DB were committed without a data server: see
// tables.Rolex.
func (db *DB) OneSided() uint64 { return db.exec().OneSided() }

// IndexStats are the counters of one client half.
type IndexStats struct {
	Index     string
	Table     string
	Partition int
	Ordered   bool
	index.ClientStats
}

// AskStats asks the server at an address for its statistics, over a new
// connection. It needs no DB, so it works while other servers are down. It
// returns ErrUnavailable if the server does not answer, and ErrProtocol if the
// answer cannot be decoded.
func AskStats(ctx context.Context, dial func(context.Context, string) (rdma.Conn, error), addr string) (*stats.Server, error) {
	return exec.AskStats(ctx, dial, addr)
}

// AskStats asks a server, by its number, for its statistics, over a new connection.
// It works while other servers are down.
func (db *DB) AskStats(ctx context.Context, server int) (*stats.Server, error) {
	return db.exec().AskStats(ctx, placement.Server(server))
}
