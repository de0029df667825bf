package main

import (
	"cmp"
	"context"
	"errors"
	"os"
	"time"

	"drtmx/internal/cluster"
	"drtmx/rdma/multi"
	"drtmx/tables"
	"drtmx/txn"
)

// childCommand runs one data server for a parent process.
const childCommand = "data-server"

// workload is what the data servers serve.
func workload(string) (cluster.Workload, error) {
	def := func(name string) tables.Def {
		return tables.Def{
			Name: name, Primary: tables.Ordered, Partition: tables.Partitioning{Kind: tables.ByHash},
			Columns: []tables.Column{{Name: "balance", Type: tables.Int64}, {Name: "note", Type: tables.Text, Size: len(note)}},
		}
	}
	c, err := tables.NewCatalog(def(hot), def(cold))
	return cluster.Workload{Name: "longreads", Catalog: c}, err
}

func runChild(ctx context.Context) error {
	p, err := cluster.NewProvider(multi.Options{}, multi.Shm)
	if err != nil {
		return err
	}
	return cluster.RunChild(ctx, cluster.ChildOptions{Provider: p, Lookup: workload})
}

// drtmx is a cluster whose data servers are processes over shared memory.
type drtmx struct {
	*cluster.Cluster
	db *txn.DB
}

func openDrtmx(ctx context.Context, servers, rows int, retain time.Duration) (_ *drtmx, err error) {
	w, err := workload("")
	if err != nil {
		return nil, err
	}
	p, err := cluster.NewProvider(multi.Options{}, multi.Shm)
	if err != nil {
		return nil, err
	}
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c, err := cluster.Start(ctx, cluster.StartOptions{
		Size: cluster.Size{Servers: servers, Retain: retain}, Provider: p, Workload: w, Command: []string{exe, childCommand},
	})
	if err != nil {
		return nil, err
	}
	d := &drtmx{Cluster: c}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.Close())
		}
	}()
	if d.db, err = c.Open(ctx, nil); err != nil {
		return nil, err
	}
	for _, t := range []string{hot, cold} {
		if err := d.load(ctx, d.table(t), rows); err != nil {
			return nil, err
		}
	}
	return d, d.db.Seal(ctx)
}

func (d *drtmx) load(ctx context.Context, t *tables.Table, rows int) error {
	l, err := d.db.NewLoader(ctx, t)
	if err != nil {
		return err
	}
	for i := range rows {
		if err := l.Add(tables.Num(uint64(i)), d.row(t, balance)); err != nil {
			return cmp.Or(err, l.Close())
		}
	}
	return l.Close()
}

func (d *drtmx) table(name string) *tables.Table { return d.db.Catalog().MustTable(name) }

func (d *drtmx) row(t *tables.Table, balance int64) tables.Row {
	r := t.NewRow()
	r.SetInt(t.Field("balance"), balance)
	r.SetText(t.Field("note"), []byte(note))
	return r
}

func (d *drtmx) hows() []string { return []string{"snapshot", "view"} }

func (d *drtmx) writer(ctx context.Context) (*writer, error) {
	s, err := d.db.NewSession(ctx)
	if err != nil {
		return nil, err
	}
	t := d.table(hot)
	bal := t.Field("balance")
	return &writer{
		move: func(ctx context.Context, from, to uint64) error {
			for {
				err := s.Update(ctx, func(x *txn.Txn) error {
					f, g := x.QueueGet(t, tables.Num(from)), x.QueueGet(t, tables.Num(to))
					a, err := f.Row()
					if err != nil {
						return err
					}
					b, err := g.Row()
					if err != nil {
						return err
					}
					was, is := a.Clone(), b.Clone()
					was.SetInt(bal, a.Int(bal)-1)
					is.SetInt(bal, b.Int(bal)+1)
					return errors.Join(x.Put(t, tables.Num(from), was), x.Put(t, tables.Num(to), is))
				})
				if !errors.Is(err, txn.ErrConflict) {
					return err
				}
			}
		},
		aborts: func() (n uint64) {
			for _, c := range s.Stats().Aborts {
				n += c
			}
			return n
		},
		close: s.Close,
	}, nil
}

func (d *drtmx) reader(ctx context.Context, how string) (*reader, error) {
	s, err := d.db.NewSession(ctx)
	if err != nil {
		return nil, err
	}
	read := s.View
	if how == "snapshot" {
		read = func(ctx context.Context, fn func(*txn.Txn) error) error { return s.Snapshot(ctx, fn) }
	}
	return &reader{
		read: func(ctx context.Context, table string) (sum int64, rows int, err error) {
			t := d.table(table)
			bal := t.Field("balance")
			err = read(ctx, func(x *txn.Txn) error {
				sum, rows = 0, 0
				for e, err := range x.Scan(t.Primary(), tables.First, tables.Last) {
					if err != nil {
						return err
					}
					sum, rows = sum+e.Row.Int(bal), rows+1
				}
				return nil
			})
			return sum, rows, err
		},
		counts: func() counts {
			st := s.Stats()
			return counts{st.Rounds, st.Fabric.Reads, st.Fabric.ReadBytes, st.Overtaken}
		},
		cpu:   func() time.Duration { return 0 }, // READs take none of the servers'
		close: s.Close,
	}, nil
}

func (d *drtmx) usage(ctx context.Context) (u usage, err error) {
	all, err := d.db.ServerStats(ctx)
	if err != nil {
		return u, err
	}
	for _, st := range all {
		u.cpu += time.Duration(st.CPUSeconds * float64(time.Second))
		u.bytes += st.RegionBytes
		for _, p := range st.Partitions {
			u.versions += p.VersionBytes
		}
	}
	return u, nil
}

func (d *drtmx) rebuild(context.Context) error { return nil }

func (d *drtmx) Close() error {
	var err error
	if d.db != nil {
		err = d.db.Close()
	}
	return errors.Join(err, d.Cluster.Close())
}
