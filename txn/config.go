package txn

import (
	"context"
	"time"

	"drtmx/internal/exec"
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
// Attempts go on until the deadline of the caller's context. A transaction whose
// attempts reach the deadline fails with an error that matches both ErrConflict and
// context.DeadlineExceeded. Patience is the bound for contexts without a
// deadline. Attempts, if set, is a bound in any case. Those that ended because a server
// took no more connections do not count, since they are bounded by time.
type Retry struct {
	Attempts   int           // maximum number of attempts; default no bound
	Patience   time.Duration // for a context without deadline, from the first failure on; default 10 s
	BackoffMin time.Duration // before the second attempt, doubling with jitter; default 2 µs
	BackoffMax time.Duration // default 1 ms
}

// Cache selects how much of the models of ordered indexes a DB keeps, XStore's
// trade-off of memory against rounds (§5.1). A part that it does not keep costs each
// lookup one more round. The zero value keeps everything.
type Cache struct {
	Keep CacheParts
	// TableBytes bounds, for each index and partition, the translation tables kept with CachePart,
	// or the inner nodes kept with CachePartTree.
	TableBytes int
}

// CacheParts are the parts of the models that a DB keeps.
type CacheParts uint8

// Parts of the models.
const (
	// CacheFull keeps models and translation tables: a Get is one round.
	CacheFull CacheParts = iota
	// CachePart keeps models, and the translation tables that fit TableBytes.
	CachePart
	// CacheModels keeps models. A lookup reads a few entries of translation tables
	// first: one round more.
	CacheModels
	// CacheRouter keeps the router. A lookup reads the sub-model first: one round
	// more, of more bytes.
	CacheRouter
	// CacheDecoded keeps what CacheFull does, with translation tables of eight bytes a
	// leaf instead of about two. A prediction takes less time while the tables fit the
	// caches of the processor, and more when they do not.
	CacheDecoded
	// CacheTree keeps all inner nodes of the trees on the data servers instead of models, a rival
	// of the learned cache: a Get is one round. The servers must publish them; see PublishInner
	// of their configuration.
	CacheTree
	// CachePartTree keeps the inner nodes that fit TableBytes, the upper ones and those that were
	// used lately. Each node that is lacking costs a lookup one round more.
	CachePartTree
)

// Inner reports whether a DB keeps inner nodes instead of models. Its ordered indexes must
// have native keys then.
func (p CacheParts) Inner() bool { return exec.Budget(p).Inner() }

func (c Cache) exec() exec.Cache {
	return exec.Cache{Budget: exec.Budget(c.Keep), TTBytes: c.TableBytes}
}

// String returns the text that ParseCache parses.
func (c Cache) String() string { return c.exec().String() }

// ParseCache parses "full", "decoded", "part=BYTES", "models", "router", "tree" or
// "tree=BYTES". BYTES is TableBytes.
func ParseCache(s string) (Cache, error) {
	c, err := exec.ParseCache(s)
	return Cache{CacheParts(c.Budget), c.TTBytes}, err
}

// Config opens a DB. Servers and Dial are required.
type Config struct {
	// Servers are addresses of data servers. The first that answers supplies the
	// catalogue and the partition map, so one address suffices.
	Servers []string
	// AllServers says that Servers are all data servers of the cluster, in
	// order. The DB dials these addresses even if the servers report others
	// for each other.
	AllServers bool
	// Dial connects to an address. It is the method Dial of a provider, such as the
	// result of shm.New. The servers must use the same fabric.
	Dial func(ctx context.Context, addr string) (rdma.Conn, error)
	// Reads selects the read path.
	Reads ReadPath
	// Retry bounds attempts.
	Retry Retry
	// LocationCache is the number of row locations cached for each hash index and
	// partition; 0 means 65,536, negative none.
	LocationCache int
	// Cache selects the parts of the models of ordered indexes that are cached; the
	// zero value caches everything. See ParseCache.
	Cache Cache
	// BodyAge is how long a body may run, from its first read to its end; 0 means
	// MaxBodyAge, the maximum. An attempt that takes longer is made again once, as a
	// server may have held it up; two in a row fail with ErrTooLarge.
	BodyAge time.Duration
	// ServerWrites makes data servers commit all transactions. Otherwise the DB commits by WRITEs
	// and atomics, without the server, what changes a table of the engine tables.Rolex alone.
	ServerWrites bool
	// Seed makes backoff jitter repeatable; 0 draws one.
	Seed uint64
}

func (c *Config) exec() exec.Config {
	return exec.Config{
		Servers: c.Servers, AllServers: c.AllServers, Dial: c.Dial, Reads: exec.ReadPath(c.Reads),
		Retry: exec.Retry(c.Retry), LocationCache: c.LocationCache, Cache: c.Cache.exec(), BodyAge: c.BodyAge, ServerWrites: c.ServerWrites, Seed: c.Seed,
	}
}

// Procedure is a transaction body that data servers run. It must be
// registered under the same name at all of them.
type Procedure struct {
	Name string
	// ReadOnly procedures may not write.
	ReadOnly bool
	// Body runs with a Txn at its home server. The caller defines the encoding of
	// args and of the result; the result must not alias args. An error rolls back.
	// While a body touches only partitions of its home server, it blocks other
	// writers there, so it must not wait for anything. It must return or panic: if it ends
	// its goroutine, as t.FailNow of a test does, it ends the process of the data server.
	Body func(ctx context.Context, t *Txn, args []byte) ([]byte, error)
}
