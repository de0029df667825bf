package txn

import (
	"context"

	"drtmx/index"
	"drtmx/internal/exec"
	"drtmx/rdma"
	"drtmx/txn/stats"
)

// Cause is the reason why an attempt was aborted.
type Cause uint8

// Causes of aborted attempts.
const (
	CauseLocked  = Cause(exec.CauseLocked)  // a writer held a row or gap
	CauseRow     = Cause(exec.CauseRow)     // a row read had changed by commit
	CauseGap     = Cause(exec.CauseGap)     // a range or an absence had changed by commit
	CauseFence   = Cause(exec.CauseFence)   // the partition's primary was deposed or restarted
	CauseRemote  = Cause(exec.CauseRemote)  // a participant voted no
	CauseCatalog = Cause(exec.CauseCatalog) // a server has another version of the catalogue
	CauseLate    = Cause(exec.CauseLate)    // the commit came so late that its proofs were too old
	CauseCount   = Cause(exec.CauseCount)
)

func (c Cause) String() string { return exec.Cause(c).String() }

// SessionStats are the counters of one session. All fields only grow.
type SessionStats struct {
	Fabric  rdma.Counters      // summed over the session's connections
	Rounds  uint64             // network rounds: concurrent batches to several servers count once
	Aborts  [CauseCount]uint64 // aborted attempts
	Commits uint64             // Views, Snapshots, Updates and Calls that returned nil
	// Snapshots began, of which Overtaken were Views that writers had
	// invalidated too often.
	Snapshots uint64
	Overtaken uint64
}

// IndexStats are the counters of one client half.
type IndexStats struct {
	Index     string
	Table     string
	Partition int
	index.ClientStats
}

// ServerStats are a data server's statistics.
type ServerStats = stats.Server

// Statistics of a data server's partitions and of the indexes in them.
type (
	PartitionStats      = stats.Partition
	PartitionIndexStats = stats.Index
)

// AskStats asks the server at an address for its statistics, over a new
// connection. It needs no DB, so it works while other servers are down. It
// returns ErrUnavailable if the server does not answer, and ErrProtocol if the
// answer cannot be decoded.
func AskStats(ctx context.Context, dial func(context.Context, string) (rdma.Conn, error), addr string) (*ServerStats, error) {
	return exec.AskStats(ctx, dial, addr)
}

// AskStats asks one server, by its number, over a new connection, for its
// statistics. It works while other servers are down.
func (db *DB) AskStats(ctx context.Context, server int) (*ServerStats, error) {
	return db.exec().AskStats(ctx, server)
}
