package ycsb

import (
	"strings"

	"github.com/magiconair/properties"

	"drtmx/index/learned"
	"drtmx/internal/cluster"
	"drtmx/txn"
	"drtmx/ycsb/props"
	"drtmx/ycsb/usertable"
)

// Fabrics of an embedded cluster.
const (
	fabricInproc = "inproc"
	fabricShm    = "shm"
)

// Defaults of an embedded cluster.
const (
	defaultServers = 2
	cacheBytesMax  = 1 << 30
)

// options are the properties of the database, checked.
type options struct {
	layout        *usertable.Layout
	primaryGiven  bool
	addr          string
	fabric        string
	size          cluster.Size
	reads         txn.ReadPath
	cache         txn.Cache
	locationCache int
	upsert        bool
	atServer      bool // updates and read-modify-writes
	seed          uint64
}

// Embedded reports whether a database with these properties starts its own
// servers, which stop when it closes.
func Embedded(p *properties.Properties) bool { return p.GetString(props.Addr, "") == "" }

// readOptions reads all properties of the database; its error names every
// invalid one.
func readOptions(p *properties.Properties) (*options, error) {
	r := props.NewReader(p)
	r.CheckNames()
	layout, err := usertable.Read(p)
	r.Join(err)
	o := &options{
		layout: layout, primaryGiven: r.Has(props.Primary),
		addr:   strings.TrimSpace(r.String(props.Addr, "")),
		fabric: r.OneOf(props.Fabric, fabricInproc, fabricInproc, fabricShm),
		size: cluster.Size{
			Servers:    int(r.Int(props.Servers, defaultServers, 1, cluster.MaxServers)),
			Partitions: int(r.Int(props.Partitions, 0, 0, cluster.MaxPartitions)),
		},
		locationCache: int(r.Int(props.LocationCache, 0, -1, cacheBytesMax)),
		upsert:        r.Bool(props.Upsert, false),
		atServer:      r.OneOf(props.Update, "procedure", "procedure", "client") == "procedure",
		seed:          uint64(r.Int(props.Seed, 1, 0, 1<<62)),
	}
	if r.OneOf(props.Design, "drtmx", "drtmx", "drtmh") == "drtmh" {
		o.reads = txn.OrderedByRPC
	}
	if o.cache, err = txn.ParseCache(r.String(props.Cache, "full")); err != nil {
		r.Fault("%s: %v", props.Cache, err)
	}
	if o.size.Models, err = learned.ParseFamily(r.String(props.Models, "")); err != nil {
		r.Fault("%s: %v", props.Models, err)
	}
	if o.size.Partitions == 0 {
		o.size.Partitions = o.size.Servers
	}
	if o.size.Partitions < o.size.Servers {
		r.Fault("%s %d: want 0, or at least one for each of the %d servers (%s)", props.Partitions, o.size.Partitions, o.size.Servers, props.Servers)
	}
	if r.Has(props.Addr) {
		if o.addr == "" {
			r.Fault("%s has no value: want the --data-dir of drtmx serve, or sockets of its data servers", props.Addr)
		}
		for _, name := range []string{props.Fabric, props.Servers, props.Partitions, props.Partitioning, props.Models} {
			if r.Has(name) {
				r.Fault("%s with %s: want one of them, for a running cluster has its own", name, props.Addr)
			}
		}
	}
	return o, r.Err()
}
