//go:build peers

package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/lib/pq"
)

func init() { peers["postgres"] = openPostgres }

// postgres is a running PostgreSQL server, whose transactions are repeatable
// reads and do not wait for the disk.
type postgres struct {
	db         *sql.DB
	postmaster int
}

// openPostgres fills the tables of a server. where is what lib/pq connects to.
func openPostgres(ctx context.Context, where string, rows int) (_ store, err error) {
	if where == "" {
		return nil, errors.New("no PostgreSQL: results/longreads.sh starts one")
	}
	db, err := sql.Open("postgres", where)
	if err != nil {
		return nil, err
	}
	db.SetMaxIdleConns(64)
	p := &postgres{db: db}
	defer func() {
		if err != nil {
			err = errors.Join(err, db.Close())
		}
	}()
	var dir string
	if err := db.QueryRowContext(ctx, "SHOW data_directory").Scan(&dir); err != nil {
		return nil, err
	}
	pid, err := os.ReadFile(dir + "/postmaster.pid")
	if err != nil {
		return nil, err
	}
	first, _, _ := strings.Cut(string(pid), "\n")
	if p.postmaster, err = strconv.Atoi(first); err != nil {
		return nil, err
	}
	for _, t := range []string{hot, cold} {
		for _, q := range []string{
			"DROP TABLE IF EXISTS " + t,
			"CREATE TABLE " + t + " (id bigint PRIMARY KEY, balance bigint NOT NULL, note text NOT NULL)",
			fmt.Sprintf("INSERT INTO %s SELECT i, %d, '%s' FROM generate_series(0, %d) i", t, balance, note, rows-1),
		} {
			if _, err := db.ExecContext(ctx, q); err != nil {
				return nil, err
			}
		}
	}
	return p, p.rebuild(ctx)
}

// fetch reads the rows here, as the other stores do; sum adds them up there.
func (p *postgres) hows() []string { return []string{"fetch", "sum"} }

func (p *postgres) writer(ctx context.Context) (*writer, error) {
	c, err := p.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	// One statement is one round trip, in its favour. It locks in the order of
	// the keys.
	st, err := c.PrepareContext(ctx,
		"UPDATE hot SET balance = balance + CASE id WHEN $1 THEN -1 ELSE 1 END WHERE id IN ($1::bigint, $2::bigint)")
	if err != nil {
		return nil, err
	}
	var aborts atomic.Uint64
	return &writer{
		move: func(ctx context.Context, from, to uint64) error {
			for {
				_, err := st.ExecContext(ctx, int64(from), int64(to))
				var refused *pq.Error
				if !errors.As(err, &refused) || refused.Code.Class() != "40" {
					return err
				}
				aborts.Add(1)
			}
		},
		aborts: aborts.Load,
		close:  c.Close,
	}, nil
}

func (p *postgres) reader(ctx context.Context, how string) (*reader, error) {
	c, err := p.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	var pid int
	if err := c.QueryRowContext(ctx, "SELECT pg_backend_pid()").Scan(&pid); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	read := fetch
	if how == "sum" {
		read = func(ctx context.Context, c *sql.Conn, table string) (sum int64, rows int, err error) {
			err = c.QueryRowContext(ctx, "SELECT sum(balance), count(*) FROM "+table).Scan(&sum, &rows)
			return sum, rows, err
		}
	}
	return &reader{
		read:   func(ctx context.Context, table string) (int64, int, error) { return read(ctx, c, table) },
		counts: func() counts { return counts{} },
		cpu:    func() time.Duration { own, _, _, _ := processCPU(pid); return own },
		close:  c.Close,
	}, nil
}

func fetch(ctx context.Context, c *sql.Conn, table string) (sum int64, rows int, err error) {
	all, err := c.QueryContext(ctx, "SELECT balance, note FROM "+table)
	if err != nil {
		return 0, 0, err
	}
	defer all.Close()
	var n int64
	var text sql.RawBytes
	for all.Next() {
		if err := all.Scan(&n, &text); err != nil {
			return 0, 0, err
		}
		sum, rows = sum+n, rows+1
	}
	return sum, rows, all.Err()
}

// usage adds up the processes below the postmaster.
func (p *postgres) usage(ctx context.Context) (u usage, err error) {
	own, ended, _, err := processCPU(p.postmaster)
	if err != nil {
		return u, err
	}
	u.cpu = own + ended
	processes, err := os.ReadDir("/proc")
	for _, e := range processes {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			if own, _, parent, err := processCPU(pid); err == nil && parent == p.postmaster {
				u.cpu += own
			}
		}
	}
	if err != nil {
		return u, err
	}
	return u, p.db.QueryRowContext(ctx, "SELECT pg_total_relation_size('hot') + pg_total_relation_size('cold')").Scan(&u.bytes)
}

func (p *postgres) rebuild(ctx context.Context) error {
	for _, q := range []string{"VACUUM ANALYZE hot", "VACUUM ANALYZE cold", "CHECKPOINT"} {
		if _, err := p.db.ExecContext(ctx, q); err != nil {
			return err
		}
	}
	return nil
}

func (p *postgres) Close() error { return p.db.Close() }

// processCPU is the processor time of a process, in steps of 10 ms, and that of
// its children that have ended.
func processCPU(pid int) (own, ended time.Duration, parent int, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, 0, err
	}
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	number := func(field int) time.Duration { // as proc(5) numbers them
		n, _ := strconv.ParseInt(f[field-3], 10, 64)
		return time.Duration(n)
	}
	const tick = 10 * time.Millisecond
	return tick * (number(14) + number(15)), tick * (number(16) + number(17)), int(number(4)), nil
}
