package exec

import (
	"context"
	"time"

	"drtmx/index/learned/read"
	"drtmx/rdma"
)

// ReadPath says how a client executes its reads.
type ReadPath uint8

// Read paths.
const (
	// OneSided reads both index kinds by READs.
	OneSided ReadPath = iota
	// OrderedByRPC reads hash indexes by READs and sends each ordered lookup or scan to the server as one RPC (as DrTM+H).
	OrderedByRPC
)

// Retry bounds the attempts of one transaction. Zero fields take the defaults.
//
// Attempts go on until the deadline of the caller's context. A transaction that
// reaches the deadline so fails with an error that matches both ErrConflict and
// context.DeadlineExceeded. Patience is the bound for contexts without a
// deadline. Attempts, if set, is a bound in any case. Those that ended because a server
// took no more connections do not count, since they are bounded by time.
type Retry struct {
	Attempts   int           // maximum number of attempts; default no bound
	Patience   time.Duration // for a context without deadline, from the first failure on; default 10 s
	BackoffMin time.Duration // before the second attempt, doubling with jitter; default 2 µs
	BackoffMax time.Duration // default 1 ms
}

// Cache says how much of the models of ordered indexes a client caches.
type (
	Cache  = read.Cache
	Budget = read.Budget
)

// ParseCache parses the output of Cache.String.
func ParseCache(s string) (Cache, error) { return read.ParseCache(s) }

// Config opens a DB. Servers and Dial are required.
type Config struct {
	// Servers are addresses of data servers. The first that answers supplies the
	// catalogue and the partition map.
	Servers []string
	// AllServers says that Servers are all data servers of the cluster, in
	// order. The DB dials these addresses even if the servers report others for
	// each other.
	AllServers bool
	// Dial connects to an address, over the fabric that the address selects.
	Dial func(ctx context.Context, addr string) (rdma.Conn, error)
	// Reads selects the read path.
	Reads ReadPath
	// Retry bounds attempts.
	Retry Retry
	// LocationCache is the number of row locations cached for each hash index and
	// partition; 0 means 65,536, negative none.
	LocationCache int
	// Cache says how much of the models of ordered indexes is cached.
	Cache Cache
	// BodyAge is how long a body may run, from its first read to its end; 0 means
	// MaxBodyAge, the maximum. An attempt that takes longer is made again once, as a
	// server may have held it up; two in a row fail with ErrTooLarge.
	BodyAge time.Duration
	// ServerWrites makes data servers commit all transactions, also those of indexes that clients
	// can write themselves.
	ServerWrites bool
	// Seed makes backoff jitter repeatable; 0 draws one.
	Seed uint64
}

// Body is the body of a transaction. It may run several times: see Session.
type Body interface {
	Run(t *Txn) error
}

// BodyFunc is a Body that is a function of this package's Txn.
type BodyFunc func(*Txn) error

// Run implements Body.
func (f BodyFunc) Run(t *Txn) error { return f(t) }

// Procedure is a transaction body that data servers run. It must be
// registered under the same name at all of them.
type Procedure struct {
	Name string
	// ReadOnly procedures may not write.
	ReadOnly bool
	// Body runs with a Txn at its home server. The caller defines the encoding of
	// args and of the result; the result must not alias args. An error rolls back.
	// While a body touches only partitions of its home server, it blocks other
	// writers there, so it must not wait for anything.
	Body func(ctx context.Context, t *Txn, args []byte) ([]byte, error)
}

// ID identifies a transaction that writes. It includes the time at which it was sent.
type ID struct {
	Client, Seq uint64
	Home        int // partition
	Incarnation uint64
	Epoch       uint32
	Sent        time.Duration
}

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
	CauseCount
)

func (c Cause) String() string {
	return [...]string{"locked", "row_changed", "gap_changed", "fenced", "participant", "catalogue", "late"}[c]
}

// SessionStats are the counters of one session. All fields only grow.
type SessionStats struct {
	Fabric   rdma.Counters      // summed over the session's connections
	Rounds   uint64             // network rounds: concurrent batches to several servers count once
	Proving  uint64             // those of Rounds in which Views only validated what they had read
	Aborts   [CauseCount]uint64 // aborted attempts
	Commits  uint64             // Views, Snapshots, Updates and Calls that returned nil
	OneSided uint64             // those of Commits that were Updates made without a data server
	// Snapshots is how many began. Overtaken of them were Views that writers had
	// invalidated too often. Widened of them began again: their body read at a server
	// that had not answered in time when the snapshot chose its time.
	Snapshots uint64
	Overtaken uint64
	Widened   uint64
}
