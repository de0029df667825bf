package txn_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"drtmx/internal/testseed"
	"drtmx/server"
	"drtmx/tables"
	"drtmx/txn"
)

var (
	// errTakenBack makes an Update write nothing.
	errTakenBack = errors.New("taken back")
	// errAtCommit ends a body whose commit must fail.
	errAtCommit = errors.New("fails at commit")
)

// modelTables have the same row under every way of partitioning.
func modelTables(t testing.TB) *tables.Catalog {
	t.Helper()
	var defs []tables.Def
	for name, p := range map[string]tables.Partitioning{
		"hashed": {Kind: tables.ByHash},
		"ranged": {Kind: tables.ByRange, Bounds: []tables.Key{tables.Num(40), tables.Num(90)}},
		"bits":   {Kind: tables.ByBits, Shift: 3},
	} {
		defs = append(defs, tables.Def{
			Name: name, Primary: tables.Ordered, Partition: p,
			Columns: []tables.Column{{Name: "v", Type: tables.Int64}, {Name: "group", Type: tables.Int16}},
			Secondary: []tables.Secondary{{
				Name: "by_group", Include: []string{"v"}, Partition: tables.Partitioning{Kind: tables.ByHash},
				Key: []tables.KeyPart{{Column: "group", Bits: 8, How: tables.Descending}, {Column: "v", Bits: 56, How: tables.Value}},
			}},
		})
	}
	c, err := tables.NewCatalog(defs...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

type modelRow struct{ v, group int64 }

// modelRun is one table beside a map.
type modelRun struct {
	tab       *tables.Table
	v, group  tables.Field
	committed map[uint64]modelRow
	now       map[uint64]modelRow // as the transaction under way sees it
	nextV     int64               // v is unique, and so are secondary keys
}

func (m *modelRun) row(r modelRow) tables.Row {
	row := m.tab.NewRow()
	row.SetInt(m.v, r.v)
	row.SetInt(m.group, r.group)
	return row
}

// step does one random operation in both, and compares.
func (m *modelRun) step(t *rapid.T, x *txn.Txn) error {
	key := rapid.Uint64Range(0, 120).Draw(t, "key")
	old, there := m.now[key]
	m.nextV++
	r := modelRow{m.nextV, int64(rapid.IntRange(0, 3).Draw(t, "group"))}
	var err, want error
	switch rapid.SampledFrom([]string{"get", "scan", "range", "groups", "insert", "put", "update", "delete"}).Draw(t, "op") {
	case "get":
		row, err := x.Get(m.tab, tables.Num(key))
		if (err == nil) != there || err == nil && (row.Int(m.v) != old.v || row.Int(m.group) != old.group) {
			return fmt.Errorf("get %d: %v, %v; want %v, %v", key, row, err, old, there)
		}
		return nil
	case "scan":
		return m.scan(t, x, key)
	case "range":
		return m.rangeOver(t, x, key)
	case "groups":
		return m.groups(x, int64(rapid.IntRange(0, 3).Draw(t, "g")))
	case "insert":
		if err = x.Insert(m.tab, tables.Num(key), m.row(r)); there {
			return tookBack(err, txn.ErrExists)
		}
	case "put":
		err = x.Put(m.tab, tables.Num(key), m.row(r))
	case "update":
		if err = x.Update(m.tab, tables.Num(key), m.row(r)); !there {
			return tookBack(err, txn.ErrNotFound)
		}
	case "delete":
		if err = x.Delete(m.tab, tables.Num(key)); !there {
			return tookBack(err, txn.ErrNotFound)
		}
		delete(m.now, key)
		return err
	}
	if !errors.Is(err, want) {
		return fmt.Errorf("write of %d: %w", key, err)
	}
	m.now[key] = r
	return nil
}

// tookBack ends a transaction whose write cannot stand. The fault may show
// only at commit.
func tookBack(err, want error) error {
	if err != nil && !errors.Is(err, want) {
		return fmt.Errorf("%w, want %w", err, want)
	}
	if err != nil {
		return errTakenBack
	}
	return errAtCommit
}

func (m *modelRun) scan(t *rapid.T, x *txn.Txn, lo uint64) error {
	hi := lo + rapid.Uint64Range(0, 60).Draw(t, "width")
	limit := rapid.IntRange(0, 8).Draw(t, "limit")
	es, err := x.QueueScan(m.tab.Primary(), tables.Num(lo), tables.Num(hi), limit).Entries()
	if err != nil {
		return err
	}
	var want []uint64
	for _, k := range slices.Sorted(maps.Keys(m.now)) {
		if k >= lo && k <= hi && (limit == 0 || len(want) < limit) {
			want = append(want, k)
		}
	}
	var got []uint64
	for _, e := range es {
		got = append(got, e.Key.Num())
		if e.Row.Int(m.v) != m.now[e.Key.Num()].v {
			return fmt.Errorf("scan: key %d holds %d, want %d", e.Key.Num(), e.Row.Int(m.v), m.now[e.Key.Num()].v)
		}
	}
	if !slices.Equal(got, want) {
		return fmt.Errorf("scan of [%d,%d], at most %d: %v, want %v", lo, hi, limit, got, want)
	}
	return nil
}

// rangeOver compares an iterator with the map, forward and in reverse. It may
// break early.
func (m *modelRun) rangeOver(t *rapid.T, x *txn.Txn, lo uint64) error {
	hi := lo + rapid.Uint64Range(0, 120).Draw(t, "width")
	want := slices.DeleteFunc(slices.Sorted(maps.Keys(m.now)), func(k uint64) bool { return k < lo || k > hi })
	seq := x.Scan(m.tab.Primary(), tables.Num(lo), tables.Num(hi))
	reverse := rapid.Bool().Draw(t, "reverse")
	if reverse {
		seq = x.ScanReverse(m.tab.Primary(), tables.Num(lo), tables.Num(hi))
		slices.Reverse(want)
	}
	want = want[:min(len(want), rapid.IntRange(0, 100).Draw(t, "rows"))]
	got := []uint64{}
	for e, err := range seq {
		if err != nil {
			return err
		}
		if len(got) == len(want) {
			break
		}
		got = append(got, e.Key.Num())
		if e.Row.Int(m.v) != m.now[e.Key.Num()].v {
			return fmt.Errorf("range: key %d holds %d, want %d", e.Key.Num(), e.Row.Int(m.v), m.now[e.Key.Num()].v)
		}
	}
	if !slices.Equal(got, want) {
		return fmt.Errorf("range over [%d,%d], reverse %v: %v, want %v", lo, hi, reverse, got, want)
	}
	return nil
}

func (m *modelRun) groups(x *txn.Txn, g int64) error {
	ix := m.tab.Secondary("by_group")
	lo := uint64(255-g) << 56
	es, err := x.QueueScan(ix, tables.Num(lo), tables.Num(lo|(1<<56-1)), 0).Entries()
	if err != nil {
		return err
	}
	var got, want []uint64
	for _, e := range es {
		got = append(got, uint64(e.Row.Int(ix.Field(tables.PrimaryKey))))
	}
	for k, r := range m.now {
		if r.group == g {
			want = append(want, k)
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		return fmt.Errorf("rows of group %d by the secondary index: %v, want %v", g, got, want)
	}
	return nil
}

// TestTransactionsAgainstModel runs transactions of random operations, own
// writes seen by own reads and scans, over every way of partitioning, beside a
// map; the last operation of each may make it roll back or fail at commit.
func TestTransactionsAgainstModel(t *testing.T) {
	ctx := context.Background()
	cat := modelTables(t)
	cl, err := server.Embedded(ctx, server.EmbeddedConfig{Catalog: cat, Servers: 3})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	runs := map[string]*modelRun{}
	for _, tab := range cat.Tables {
		runs[tab.Name()] = &modelRun{tab: tab, v: tab.Field("v"), group: tab.Field("group"), committed: map[uint64]modelRow{}}
	}
	testseed.Check(t, func(t *rapid.T) {
		m := runs[rapid.SampledFrom([]string{"hashed", "ranged", "bits"}).Draw(t, "table")]
		n := rapid.IntRange(1, 12).Draw(t, "operations")
		var failed error
		err := cl.DB.Update(ctx, func(x *txn.Txn) error {
			m.now, failed = maps.Clone(m.committed), nil
			for range n {
				switch failed = m.step(t, x); failed {
				case nil:
				case errAtCommit:
					return nil
				default:
					return failed
				}
			}
			return nil
		})
		switch {
		case err == nil && failed == nil:
			m.committed = m.now
		case err != nil && failed == errTakenBack:
		case failed == errAtCommit && (errors.Is(err, txn.ErrExists) || errors.Is(err, txn.ErrNotFound)):
		default:
			t.Fatalf("%v (%v)", err, failed)
		}
		if err := cl.DB.View(ctx, func(x *txn.Txn) error {
			m.now = m.committed
			for g := range int64(4) {
				if err := m.groups(x, g); err != nil {
					return err
				}
			}
			es, err := x.QueueScan(m.tab.Primary(), tables.Num(0), tables.Last, 0).Entries()
			if err == nil && len(es) != len(m.committed) {
				err = fmt.Errorf("%d rows, want %d", len(es), len(m.committed))
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	})
	for _, s := range cl.Servers {
		if err := s.Check(); err != nil {
			t.Error(err)
		}
	}
}
