package ycsb

import (
	"path/filepath"
	"strings"
	"time"

	"github.com/magiconair/properties"

	"drtmx/index/learned"
	"drtmx/internal/cluster"
	"drtmx/internal/placement"
	"drtmx/server"
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

// options are the checked properties of the database.
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
	lookFirst     bool // inserts READ the place of the record first
	atServer      bool // updates and read-modify-writes
	serverWrites  bool // see txn.Config
	seed          uint64
}

// memoryMaxMiB bounds drtmx.memory.
const memoryMaxMiB = 1 << 30

// Check checks the properties of the database. Its error names every invalid one.
func Check(p *properties.Properties) error {
	_, err := readOptions(p)
	return err
}

// Embedded reports whether a database with these properties starts its own
// servers, whose data is gone when it closes.
func Embedded(p *properties.Properties) bool {
	return p.GetString(props.Addr, "") == "" && p.GetString(props.DataDir, "") == ""
}

// readData reads the properties of durability, and takes the shape of the cluster
// from existing data.
func (o *options) readData(r *props.Reader) {
	memory, disk := server.Memory.String(), server.Disk.String()
	policy, dir := r.OneOf(props.Durability, "", memory, disk), strings.TrimSpace(r.String(props.DataDir, ""))
	switch {
	case dir == "" && (policy == disk || r.Has(props.DataDir)):
		r.Fault("%s %s: want %s with it, a directory for the data", props.Durability, disk, props.DataDir)
	case dir != "" && policy == memory:
		r.Fault("%s %s and %s %s: want %s %s, or no directory", props.Durability, memory, props.DataDir, dir, props.Durability, disk)
	}
	if dir == "" || r.Has(props.Addr) {
		return
	}
	var err error
	if o.size.DataDir, err = filepath.Abs(dir); err != nil {
		r.Fault("%s %s: %v", props.DataDir, dir, err)
		return
	}
	data, err := cluster.ReadData(o.size.DataDir)
	switch {
	case err != nil:
		r.Fault("%s %s: %v", props.DataDir, dir, err)
	case data == nil:
	case data.Hosts:
		r.Fault("%s %s: it is that of a cluster of hosts; start it with drtmx cluster up --data-dir, and want %s", props.DataDir, dir, props.Addr)
	case r.Has(props.Servers) && o.size.Servers != data.Servers:
		r.Fault("%s %d: the data in %s is that of %d data servers", props.Servers, o.size.Servers, dir, data.Servers)
	case r.Has(props.Partitions) && o.size.Partitions != data.Partitions:
		r.Fault("%s %d: the data in %s has %d", props.Partitions, o.size.Partitions, dir, data.Partitions)
	default:
		o.size.Servers, o.size.Partitions = data.Servers, data.Partitions
	}
}

// readOptions reads all properties of the database. Its error names every invalid
// one.
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
		lookFirst:     r.OneOf(props.Insert, "server", "server", "client") == "client",
		serverWrites:  r.OneOf(props.Writes, "client", "client", "server") == "server",
		seed:          uint64(r.Int(props.Seed, 1, 0, 1<<62)),
	}
	update := "procedure"
	if layout != nil && layout.Primary == usertable.Rolex {
		update = "client"
	}
	o.atServer = r.OneOf(props.Update, update, "procedure", "client") == "procedure"
	o.size.WriterLease = time.Duration(r.Int(props.WriterLease, 0, 0, props.WriterLeaseMax)) * time.Millisecond
	if r.OneOf(props.Design, "drtmx", "drtmx", "drtmh") == "drtmh" {
		o.reads = txn.OrderedByRPC
	}
	if o.cache, err = txn.ParseCache(r.String(props.Cache, "full")); err != nil {
		r.Fault("%s: %v", props.Cache, err)
	}
	if o.size.PublishInner = o.cache.Keep.Inner(); o.size.PublishInner && layout != nil && layout.Primary == usertable.Ordered && !layout.Numbers {
		r.Fault("%s %v with %s %s: want %s=%s, for inner nodes of strings are not published", props.Cache, o.cache, props.KeyKind, usertable.Text, props.KeyKind, usertable.Number)
	}
	if o.size.Models, err = learned.ParseFamily(r.String(props.Models, "")); err != nil {
		r.Fault("%s: %v", props.Models, err)
	}
	if o.size.Partitions == 0 {
		o.size.Partitions = o.size.Servers
	}
	o.readData(r)
	if mib := uint64(r.Int(props.Memory, 0, 0, memoryMaxMiB)); mib != 0 {
		hosted := uint64(placement.Spread(max(o.size.Partitions, o.size.Servers), o.size.Servers).Count(0))
		if o.size.PartitionBytes = mib << 20 / hosted; o.size.PartitionBytes < cluster.MinMemoryBytes {
			r.Fault("%s %d: want 0, or at least %d (MiB) for the %d partitions of a server", props.Memory, mib, hosted*cluster.MinMemoryBytes>>20, hosted)
		}
	}
	if o.size.Partitions < o.size.Servers {
		r.Fault("%s %d: want 0, or at least one for each of the %d servers (%s)", props.Partitions, o.size.Partitions, o.size.Servers, props.Servers)
	}
	if r.Has(props.Addr) {
		if o.addr == "" {
			r.Fault("%s has no value: want the --runtime-dir of drtmx serve, or sockets of its data servers", props.Addr)
		}
		for _, name := range []string{props.Fabric, props.Servers, props.Partitions, props.Memory, props.Partitioning, props.Models, props.Durability, props.DataDir, props.WriterLease} {
			if r.Has(name) {
				r.Fault("%s with %s: want one of them, for a running cluster has its own", name, props.Addr)
			}
		}
	}
	return o, r.Err()
}
