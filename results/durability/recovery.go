package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"drtmx/internal/hist"
	"drtmx/server"
	"drtmx/tables"
	"drtmx/txn"
)

// childCommand loads or recovers a database in a process of its own, so that the
// memory of one does not slow another: child load|checkpoint|recover DIR INDEX
// BYTES ROWS.
const childCommand = "child"

// embedded is a cluster of one server in this process, with a table of rows of a
// size and a partition for each processor.
func embedded(ctx context.Context, dir, index string, bytes int, checkpointBytes, checkpointRate int64) (*server.Cluster, error) {
	def := tables.Def{
		Name: "t", Primary: tables.Hash, Partition: tables.Partitioning{Kind: tables.ByHash},
		Columns: []tables.Column{{Name: "n", Type: tables.Int64}},
	}
	if index == "ordered" {
		def.Primary = tables.Ordered
	}
	if bytes > 8 {
		def.Columns = append(def.Columns, tables.Column{Name: "text", Type: tables.Text, Size: bytes - 8})
	}
	c, err := tables.NewCatalog(def)
	if err != nil {
		return nil, err
	}
	return server.Embedded(ctx, server.EmbeddedConfig{
		Catalog: c, Partitions: 2, Durability: server.Disk, Dir: dir, CheckpointBytes: checkpointBytes, CheckpointRate: checkpointRate,
	})
}

// never is more than any log has.
const never = 1 << 50

// phases is what child recover prints.
type phases struct {
	server.Recovered
	Elapsed float64 // seconds, until clients are served
	CPU     float64 // seconds of the process
}

func child(ctx context.Context, args []string, out io.Writer) error {
	if len(args) != 5 {
		return errors.New("child: want VERB DIR INDEX BYTES ROWS")
	}
	bytes, err := strconv.Atoi(args[3])
	if err != nil {
		return err
	}
	rows, err := strconv.Atoi(args[4])
	if err != nil {
		return err
	}
	checkpoint := int64(never)
	if args[0] == "checkpoint" {
		checkpoint = 1
	}
	start := time.Now()
	c, err := embedded(ctx, args[1], args[2], bytes, checkpoint, never)
	if err != nil {
		return err
	}
	elapsed := time.Since(start).Seconds()
	switch args[0] {
	case "load":
		err = load(ctx, c.DB, bytes, rows)
	case "checkpoint":
		for err == nil && c.Servers[0].Stats().Log.Checkpoints == 0 {
			time.Sleep(10 * time.Millisecond)
			err = ctx.Err()
		}
	default:
		r := c.Servers[0].Recovered()
		if r.Rows != uint64(rows) {
			err = fmt.Errorf("%d rows were recovered, want %d", r.Rows, rows)
			break
		}
		err = json.NewEncoder(out).Encode(phases{r, elapsed, ownCPU().Seconds()})
	}
	return errors.Join(err, c.Close())
}

func row(t *tables.Table, n, bytes int) tables.Row {
	r := t.NewRow()
	r.SetInt(t.Field("n"), int64(n))
	if bytes > 8 {
		r.SetText(t.Field("text"), []byte("text of a row"))
	}
	return r
}

func load(ctx context.Context, db *txn.DB, bytes, rows int) error {
	t := db.Catalog().MustTable("t")
	l, err := db.NewLoader(ctx, t)
	if err != nil {
		return err
	}
	for i := range rows {
		if err := l.Add(tables.Num(uint64(i)), row(t, i, bytes)); err != nil {
			return cmp.Or(err, l.Close())
		}
	}
	return errors.Join(l.Close(), db.Seal(ctx))
}

var recoveryAims = map[string]float64{"hash": 0.3, "ordered": 0.5}

// recovery loads tables and recovers them, from the log and from a checkpoint, on
// one processor and on all.
func (o *options) recovery(ctx context.Context, out io.Writer) error {
	fmt.Fprintf(out, "## Recovery\n\n    results/durability.sh -sections recovery\n\n")
	fmt.Fprintf(out, "%d rows in one table, two partitions, one server in a process of its own. The files are in the page cache. *One processor*: GOMAXPROCS=1. A phase is elapsed time, divided by the rows; *CPU* is processor time of the whole process. The log has what bulk loading left.\n\n", o.rows)
	fmt.Fprint(out, "| index | row bytes | from | processors | checkpoint µs a key | log µs | models µs | all µs | CPU µs | aim, one processor | s in all |\n|---|--:|---|---|--:|--:|--:|--:|--:|--:|--:|\n")
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	for _, index := range []string{"hash", "ordered"} {
		for _, bytes := range []int{8, 64} {
			dir := filepath.Join(o.dir, "recovery")
			run := func(verb string, env ...string) ([]byte, error) {
				return command(ctx, env, exe, childCommand, verb, dir, index, fmt.Sprint(bytes), fmt.Sprint(o.rows))
			}
			o.say("%s, %d bytes: loading %d rows", index, bytes, o.rows)
			if _, err := run("load"); err != nil {
				return err
			}
			for _, from := range []string{"log", "checkpoint"} {
				if from == "checkpoint" {
					if _, err := run("checkpoint"); err != nil {
						return err
					}
				}
				for _, processors := range []string{"one", "all"} {
					var env []string
					if processors == "one" {
						env = []string{"GOMAXPROCS=1"}
					}
					raw, err := run("recover", env...)
					if err != nil {
						return err
					}
					var p phases
					if err := json.Unmarshal(raw, &p); err != nil {
						return err
					}
					key := func(seconds float64) float64 { return seconds * 1e6 / float64(o.rows) }
					total := p.Checkpoint + p.Replay + p.Train
					fmt.Fprintf(out, "| %s | %d | %s | %s | %.3f | %.3f | %.3f | **%.3f** | %.3f | ≤ %.1f | %.2f |\n", index, bytes, from, processors,
						key(p.Checkpoint.Seconds()), key(p.Replay.Seconds()), key(p.Train.Seconds()), key(total.Seconds()), key(p.CPU), recoveryAims[index], p.Elapsed)
					o.say("%s, %d bytes, from the %s, %s: %.3f µs a key", index, bytes, from, processors, key(total.Seconds()))
				}
			}
			if err := os.RemoveAll(dir); err != nil {
				return err
			}
		}
	}
	fmt.Fprintln(out)
	return nil
}

// latencies are those of commits beside checkpoints, 1, and without, 0.
type latencies [2]*hist.Histogram

// besideCheckpoints compares the latencies of commits that begin while a
// checkpoint is being made with those of the others.
func (o *options) besideCheckpoints(ctx context.Context, out io.Writer) (err error) {
	const bytes, writers, every, rate = 200, 8, 8 << 20, 64 << 20
	dir := filepath.Join(o.dir, "beside")
	c, err := embedded(ctx, dir, "ordered", bytes, every, rate)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close(), os.RemoveAll(dir)) }()
	if err := load(ctx, c.DB, bytes, o.stored); err != nil {
		return err
	}
	fmt.Fprintf(out, "## Commits beside checkpoints\n\n    results/durability.sh -sections checkpoints\n\n")
	fmt.Fprintf(out, "%d rows of %d bytes, an ordered index, one server of two partitions in the process of the clients; %d clients update random rows, one in a transaction. A checkpoint begins when the log has grown by %d MiB and writes %d MiB a second, the server's default. *Paced*: a quarter of the rate reached without pause; a latency counts from the time at which the commit was due.\n\n",
		o.stored, bytes, writers, every>>20, rate>>20)
	fmt.Fprint(out, "| | commits/s | checkpoints | commits beside them | p50 µs without | p50 µs beside | p99 µs without | p99 µs beside | p99 beside ÷ without | aim |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n")
	pace := 0.0
	for _, name := range []string{"without pause", "paced"} {
		before := c.Servers[0].Stats().Log.Checkpoints
		l, err := o.writeBeside(ctx, c, bytes, writers, pace)
		if err != nil {
			return err
		}
		n := l[0].Count() + l[1].Count()
		per := float64(n) / o.beside.Seconds()
		pace = per / 4
		q := func(i int, p float64) float64 { return l[i].QuantileUs(p) }
		if l[0].Count() == 0 || l[1].Count() == 0 {
			o.say("commits beside checkpoints, %s: %d beside, %d without", name, l[1].Count(), l[0].Count())
			fmt.Fprintf(out, "| %s | %.0f | | %d of %d | | | | | too few | ≤ 1.5 |\n", name, per, l[1].Count(), n)
			continue
		}
		fmt.Fprintf(out, "| %s | %.0f | %d | %.0f %% | %.0f | %.0f | %.0f | %.0f | **%.2f** | ≤ 1.5 |\n", name, per, c.Servers[0].Stats().Log.Checkpoints-before,
			100*float64(l[1].Count())/float64(n), q(0, 0.5), q(1, 0.5), q(0, 0.99), q(1, 0.99), q(1, 0.99)/q(0, 0.99))
		o.say("commits beside checkpoints, %s: p99 %.0f µs, without %.0f µs", name, q(1, 0.99), q(0, 0.99))
	}
	fmt.Fprintln(out)
	return nil
}

// writeBeside updates rows, pace times a second in all, or without pause if it is
// 0.
func (o *options) writeBeside(ctx context.Context, c *server.Cluster, bytes, writers int, pace float64) (sum latencies, err error) {
	until := time.Now().Add(o.beside)
	var beside atomic.Bool
	var watch, work sync.WaitGroup
	watch.Go(func() {
		for ; time.Now().Before(until); time.Sleep(2 * time.Millisecond) {
			beside.Store(c.Servers[0].Stats().Log.CheckpointRowsTotal > 0)
		}
	})
	all, errs := make([]latencies, writers), make([]error, writers)
	for i := range writers {
		work.Go(func() {
			w := &writer{rng: rand.New(rand.NewPCG(1, uint64(i))), bytes: bytes, rows: o.stored, until: until, beside: &beside}
			if pace > 0 {
				w.every = float64(writers) / pace
			}
			all[i], errs[i] = w.run(ctx, c.DB)
		})
	}
	work.Wait()
	watch.Wait()
	sum = latencies{hist.New(), hist.New()}
	for _, l := range all {
		sum[0].Merge(l[0])
		sum[1].Merge(l[1])
	}
	return sum, errors.Join(errs...)
}

// writer is one client. The commits of a writer with every are due at random
// distances of so many seconds on average.
type writer struct {
	rng         *rand.Rand
	bytes, rows int
	every       float64
	until       time.Time
	beside      *atomic.Bool
}

func (w *writer) run(ctx context.Context, db *txn.DB) (latencies, error) {
	l := latencies{hist.New(), hist.New()}
	s, err := db.NewSession(ctx)
	if err != nil {
		return l, err
	}
	t, due := db.Catalog().MustTable("t"), time.Now()
	for time.Now().Before(w.until) {
		if w.every > 0 {
			due = due.Add(time.Duration(w.rng.ExpFloat64() * w.every * float64(time.Second)))
			time.Sleep(time.Until(due))
		} else {
			due = time.Now()
		}
		which := 0
		if w.beside.Load() {
			which = 1
		}
		n := w.rng.IntN(w.rows)
		err = txn.ErrConflict
		for errors.Is(err, txn.ErrConflict) {
			err = s.Update(ctx, func(x *txn.Txn) error { return x.Put(t, tables.Num(uint64(n)), row(t, n, w.bytes)) })
		}
		if err != nil {
			return l, errors.Join(err, s.Close())
		}
		l[which].Record(time.Since(due))
	}
	return l, s.Close()
}
