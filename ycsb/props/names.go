package props

import (
	"slices"
	"strings"
)

// Prefix begins the names of all properties that drtmx defines.
const Prefix = "drtmx."

// Properties of drtmx. docs/ycsb.md describes them.
const (
	Fabric     = "drtmx.fabric"
	Servers    = "drtmx.servers"
	Partitions = "drtmx.partitions"
	Memory     = "drtmx.memory"
	// Durability is memory (the default) or disk, which DataDir implies.
	Durability   = "drtmx.durability"
	DataDir      = "drtmx.datadir"
	Partitioning = "drtmx.partitioning"
	Primary      = "drtmx.primary"
	// KeyKind is the kind of keys of the table: string (the default), number or
	// spread.
	KeyKind = "drtmx.keys"
	// Twin is the twin of a table with a hash index: none (the default), local, sync or next.
	Twin          = "drtmx.twin"
	Addr          = "drtmx.addr"
	Design        = "drtmx.design"
	LocationCache = "drtmx.locationcache"
	Cache         = "drtmx.cache"
	Models        = "drtmx.models"
	Update        = "drtmx.update"
	// Insert says which side finds the place of a new record: the server (the default), or the client, which
	// READs there and sends the address with the record.
	Insert = "drtmx.insert"
	Upsert = "drtmx.upsert"
	// Writes is where transactions commit that clients can commit without a data server: at the
	// client (the default), or at the server.
	Writes = "drtmx.writes"
	// WriterLease is how long such a client may hold rows that others wait for, in milliseconds.
	WriterLease = "drtmx.writerlease"
	// ReadModifyWrite is transaction (the default) or separate. With transaction, a
	// read-modify-write is one transaction, if the database can do that. With
	// separate, it is Read and Update, as in go-ycsb.
	ReadModifyWrite = "drtmx.rmw"
	// Report false omits the report in nanosecond resolution.
	Report = "drtmx.report"
	// Seed is the seed of all keys, values and choices of a run.
	Seed = "drtmx.seed"
)

// WriterLeaseMax is the greatest WriterLease, in milliseconds: a day.
const WriterLeaseMax = 86_400_000

var names = []string{
	Addr, Cache, DataDir, Design, Durability, Fabric, Insert, KeyKind, LocationCache, Memory, Models, Partitioning, Partitions, Primary,
	ReadModifyWrite, Report, Seed, Servers, Twin, Update, Upsert, WriterLease, Writes,
}

// CheckNames reports properties that begin with Prefix and do not exist: a
// misspelt one would silently have no effect.
func (r *Reader) CheckNames() {
	var bad []string
	for _, key := range r.p.Keys() {
		if strings.HasPrefix(key, Prefix) && !slices.Contains(names, key) {
			bad = append(bad, key)
		}
	}
	slices.Sort(bad)
	for _, key := range bad {
		r.Fault("unknown property %s: want %s", key, Choices(names))
	}
}
