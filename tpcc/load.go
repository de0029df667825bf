package tpcc

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"drtmx/internal/rng"
	"drtmx/tables"
	"drtmx/txn"
)

// ErrWarehouses reports an invalid number of warehouses.
var ErrWarehouses = errors.New("tpcc: bad number of warehouses")

// LoadConfig describes an initial population. Warehouses is required.
type LoadConfig struct {
	Warehouses int64  // 1 to MaxWarehouses
	Seed       uint64 // the same seed, scale, warehouses and Now give the same rows
	Scale      Scale  // zero: the specification's cardinalities
	Parallel   int    // warehouses loaded at once; 0: one per processor
	Now        int64  // c_since, h_date and o_entry_d, in ns since 1970; 0: the current time
	// Progress is called after every step, by one goroutine at a time. It may
	// be nil.
	Progress func(LoadProgress)
}

// LoadProgress is the progress of a load.
type LoadProgress struct {
	Rows           int64 // loaded so far
	TotalRows      int64 // of the whole load, expected: orders have a random number of lines
	Bytes          int64 // of encoded rows, without indexes
	WarehousesDone int64
	Warehouses     int64
}

// TableLoad counts the rows and bytes loaded into one table.
type TableLoad struct {
	Table string `json:"table"`
	Rows  int64  `json:"rows"`
	Bytes int64  `json:"bytes"` // of encoded rows, without indexes
}

// LoadReport is the result of a load.
type LoadReport struct {
	Tables  []TableLoad `json:"tables"`
	Rows    int64       `json:"rows"`
	Bytes   int64       `json:"bytes"`
	Elapsed time.Duration
}

// Sink receives the rows of one table from one goroutine; *txn.Loader is one.
type Sink interface {
	// Add stores a row. The caller may reuse its memory when Add returns.
	Add(key tables.Key, row tables.Row) error
	// Close waits until all rows are stored.
	Close() error
}

// Target receives a population. Several goroutines use it, and each opens its
// own sinks.
type Target interface {
	NewSink(ctx context.Context, t *tables.Table) (Sink, error)
	// Seal ends loading.
	Seal(ctx context.Context) error
}

// dbTarget loads into a database.
type dbTarget struct{ db *txn.DB }

func (d dbTarget) NewSink(ctx context.Context, t *tables.Table) (Sink, error) {
	return d.db.NewLoader(ctx, t)
}
func (d dbTarget) Seal(ctx context.Context) error { return d.db.Seal(ctx) }

// Load populates an empty database as clause 4.3.3 requires and seals it. It
// writes the row of TableLoadInfo last: after an interrupted load, Check and
// ReadLoadInfo return ErrNotLoaded.
func Load(ctx context.Context, db *txn.DB, c LoadConfig) (LoadReport, error) {
	s, err := NewSchema(db.Catalog())
	if err != nil {
		return LoadReport{}, err
	}
	return LoadInto(ctx, dbTarget{db}, s, c)
}

// LoadInto does the same as Load for any target whose tables are those of s.
func LoadInto(ctx context.Context, to Target, s *Schema, c LoadConfig) (LoadReport, error) {
	c.Scale = c.Scale.orDefault()
	if err := c.Scale.check(); err != nil {
		return LoadReport{}, err
	}
	if !keyFits(c.Warehouses, MaxWarehouses) {
		return LoadReport{}, fmt.Errorf("%w: %d, want 1 to %d", ErrWarehouses, c.Warehouses, MaxWarehouses)
	}
	if c.Parallel <= 0 {
		c.Parallel = runtime.GOMAXPROCS(0)
	}
	if c.Now == 0 {
		c.Now = time.Now().UnixNano()
	}
	start := time.Now()
	l := &load{LoadConfig: c, schema: s, to: to, root: rng.New(c.Seed).Split("tpcc.load")}
	l.constants = rng.LoadConstants(l.root.Split("constants"))
	if err := l.run(ctx); err != nil {
		return l.report(start), err
	}
	return l.report(start), nil
}

// load is one running population.
type load struct {
	LoadConfig
	schema    *Schema
	to        Target
	root      *rng.Stream // split, never drawn from
	constants rng.Constants

	mu struct {
		sync.Mutex
		next   int64 // the next warehouse to load; 0: the items
		done   int64
		counts [tableCount]int64
	}
}

// run loads the items and the warehouses by Parallel workers. The first error
// stops all of them.
func (l *load) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var workers sync.WaitGroup
	for range min(int64(l.Parallel), l.Warehouses+1) {
		workers.Go(func() {
			if err := l.work(ctx); err != nil {
				cancel(err)
			}
		})
	}
	workers.Wait()
	if err := context.Cause(ctx); err != nil {
		return fmt.Errorf("tpcc: load: %w", err)
	}
	if err := l.loadInfo(ctx); err != nil {
		return fmt.Errorf("tpcc: load: %w", err)
	}
	if err := l.to.Seal(ctx); err != nil {
		return fmt.Errorf("tpcc: seal: %w", err)
	}
	return nil
}

// take returns the next piece of work: 0 is the items, other numbers are
// warehouses, in ascending order so that each worker's keys ascend.
func (l *load) take() (w int64, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w = l.mu.next
	l.mu.next++
	return w, w <= l.Warehouses
}

func (l *load) work(ctx context.Context) (err error) {
	p := newPopulator(ctx, l)
	defer func() {
		if end := p.close(); err == nil { // else close fails for the same reason, once per table
			err = end
		}
	}()
	for w, ok := l.take(); ok; w, ok = l.take() {
		if w == 0 {
			err = p.items()
		} else {
			err = p.warehouse(w)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// loadInfo writes the row that marks the database as loaded.
func (l *load) loadInfo(ctx context.Context) error {
	s := l.schema
	p := newPopulator(ctx, l)
	row := p.row(tabLoadInfo)
	row.SetInt(s.li.warehouses, l.Warehouses)
	row.SetInt(s.li.items, l.Scale.Items)
	row.SetInt(s.li.customers, l.Scale.Customers)
	row.SetInt(s.li.undelivered, l.Scale.Undelivered)
	row.SetInt(s.li.cLast, l.constants.CLast)
	row.SetInt(s.li.seed, int64(l.Seed))
	row.SetInt(s.li.loadedAt, l.Now)
	err := p.add(tabLoadInfo, loadInfoKey)
	return errors.Join(err, p.close())
}

// advance counts loaded rows and reports progress.
func (l *load) advance(counts *[tableCount]int64, warehouses int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for t := range counts {
		l.mu.counts[t] += counts[t]
		counts[t] = 0
	}
	l.mu.done += warehouses
	if l.Progress == nil {
		return
	}
	p := LoadProgress{TotalRows: l.expectedRows(), WarehousesDone: l.mu.done, Warehouses: l.Warehouses}
	for t, n := range l.mu.counts {
		p.Rows += n
		p.Bytes += n * int64(l.schema.table(tableID(t)).RowBytes())
	}
	l.Progress(p)
}

func (l *load) expectedRows() int64 {
	const meanLines = (MinLines + MaxLines) / 2
	perDistrict := 1 + l.Scale.Customers*(1+1+1+meanLines) + l.Scale.Undelivered
	return l.Scale.Items + l.Warehouses*(1+l.Scale.Items+Districts*perDistrict)
}

func (l *load) report(start time.Time) LoadReport {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := LoadReport{Elapsed: time.Since(start)}
	for t, n := range l.mu.counts {
		tab := l.schema.table(tableID(t))
		tl := TableLoad{Table: tab.Name(), Rows: n, Bytes: n * int64(tab.RowBytes())}
		r.Tables = append(r.Tables, tl)
		r.Rows += tl.Rows
		r.Bytes += tl.Bytes
	}
	return r
}
