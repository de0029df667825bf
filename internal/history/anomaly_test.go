package history

import (
	"errors"
	"strings"
	"testing"
)

// Short forms for histories written by hand. Keys x, y, z are 1, 2, 3.
const x, y, z Key = 1, 2, 3

func app(k Key, v Value) Op           { return Op{Kind: OpAppend, Key: k, Value: v} }
func read(k Key, list ...Value) Op    { return Op{Kind: OpRead, Key: k, List: list} }
func del(k Key, list ...Value) Op     { return Op{Kind: OpDelete, Key: k, List: list} }
func scan(lo, hi Key, rows ...Row) Op { return Op{Kind: OpScan, Key: lo, Hi: hi, Rows: rows} }
func row(k Key, list ...Value) Row    { return Row{Key: k, List: list} }
func (t Txn) ends(o Outcome) Txn      { t.Outcome = o; return t }
func (t Txn) at(from, to int64) Txn   { t.Invoke, t.Complete = from, to; return t }
func (t Txn) strict() Txn             { t.Snapshot = true; return t }
func (t Txn) stale(ns int64) Txn      { t.Snapshot, t.Stale = true, ns; return t }

// by is a committed transaction that is concurrent with all others.
func by(process uint32, ops ...Op) Txn {
	return Txn{ID: MakeTxnID(process, 1), Invoke: 0, Complete: 1000, Outcome: Committed, Ops: ops}
}

type anomalyCase struct {
	name  string
	kind  Kind
	bad   []Txn
	legal []Txn
}

// Transactions are concurrent unless given times. Each legal history differs
// from the bad one only in what makes it bad.
var anomalies = []anomalyCase{
	{
		"G0 dirty write", G0,
		[]Txn{by(1, app(x, 1), app(y, 1)), by(2, app(x, 2), app(y, 2)), by(3, read(x, 1, 2)), by(4, read(y, 2, 1))},
		[]Txn{by(1, app(x, 1), app(y, 1)), by(2, app(x, 2), app(y, 2)), by(3, read(x, 1, 2)), by(4, read(y, 1, 2))},
	},
	{
		"G0 between the appends of one transaction", G0,
		[]Txn{by(1, app(x, 1), app(x, 2)), by(2, app(x, 3)), by(3, read(x, 1, 3, 2))},
		[]Txn{by(1, app(x, 1), app(x, 2)), by(2, app(x, 3)), by(3, read(x, 1, 2, 3))},
	},
	{
		"G1a aborted read", G1a,
		[]Txn{by(1, app(x, 1)).ends(Aborted), by(2, read(x, 1))},
		[]Txn{by(1, app(x, 1)).ends(Aborted), by(2, read(x))},
	},
	{
		"G1a within a list", G1a,
		[]Txn{by(1, app(x, 1)).ends(Aborted), by(2, app(x, 2)), by(3, read(x, 1, 2))},
		[]Txn{by(1, app(x, 1)).ends(Unknown), by(2, app(x, 2)), by(3, read(x, 1, 2))},
	},
	{
		"G1a by scan", G1a,
		[]Txn{by(1, app(x, 1)).ends(Aborted), by(2, scan(x, z, row(x, 1)))},
		[]Txn{by(1, app(x, 1)).ends(Unknown), by(2, scan(x, z, row(x, 1)))},
	},
	{
		"G1b intermediate read", G1b,
		[]Txn{by(1, app(x, 1), app(x, 2)), by(2, read(x, 1))},
		[]Txn{by(1, app(x, 1), app(x, 2)), by(2, read(x, 1, 2))},
	},
	{
		"G1b append that its transaction deleted", G1b,
		[]Txn{by(1, app(x, 1), del(x, 1)), by(2, read(x, 1))},
		[]Txn{by(1, app(x, 1), del(x, 1)), by(2, read(x))},
	},
	{
		"G1b deleted append within a list", G1b,
		[]Txn{by(1, app(x, 1), del(x, 1)), by(2, app(x, 2)), by(3, read(x, 1, 2))},
		[]Txn{by(1, app(x, 1), del(x, 1)), by(2, app(x, 2)), by(3, read(x, 2))},
	},
	{
		"fractured read of a delete", FracturedRead,
		[]Txn{by(1, app(x, 1)).at(0, 10), by(2, del(x, 1), app(y, 2)).at(20, 50), by(3, read(x), read(y)).at(20, 50)},
		[]Txn{by(1, app(x, 1)).at(0, 20), by(2, del(x, 1), app(y, 2)).at(20, 50), by(3, read(x), read(y)).at(20, 50)},
	},
	{
		"G1c circular information flow", G1c,
		[]Txn{by(1, app(x, 1), read(y, 2)), by(2, app(y, 2), read(x, 1))},
		[]Txn{by(1, app(x, 1), read(y)), by(2, app(y, 2), read(x, 1))},
	},
	{
		"G-single over three", GSingle,
		[]Txn{by(1, read(x), app(z, 1)), by(2, app(x, 1), app(y, 1)), by(3, app(y, 2), app(z, 2)), by(4, read(y, 1, 2)), by(5, read(z, 2, 1))},
		[]Txn{by(1, read(x), app(z, 1)), by(2, app(x, 1), app(y, 1)), by(3, app(y, 2), app(z, 2)), by(4, read(y, 1, 2)), by(5, read(z, 1, 2))},
	},
	{
		"G2-item", G2Item,
		[]Txn{by(1, read(x), app(y, 1)), by(2, read(y), app(z, 1)), by(3, read(z), app(x, 1))},
		[]Txn{by(1, read(x), app(y, 1)), by(2, read(y), app(z, 1)), by(3, read(z, 1), app(x, 1))},
	},
	{
		"write skew", WriteSkew,
		[]Txn{by(1, read(x), app(y, 1)), by(2, read(y), app(x, 2))},
		[]Txn{by(1, read(x), app(y, 1)), by(2, read(y, 1), app(x, 2))},
	},
	{
		"lost update", LostUpdate,
		[]Txn{by(1, read(x), app(x, 1)), by(2, read(x), app(x, 2)), by(3, read(x, 1, 2))},
		[]Txn{by(1, read(x), app(x, 1)), by(2, read(x, 1), app(x, 2)), by(3, read(x, 1, 2))},
	},
	{
		"lost update whose append vanished", LostUpdate,
		[]Txn{by(1, read(x), app(x, 1)), by(2, read(x), app(x, 2)), by(3, read(x, 1))},
		[]Txn{by(1, read(x), app(x, 1)), by(2, read(x, 1), app(x, 2)), by(3, read(x, 1))},
	},
	{
		"lost update by scan", LostUpdate,
		[]Txn{by(1, scan(x, y), app(x, 1)), by(2, scan(x, y), app(x, 2)), by(3, read(x, 1, 2))},
		[]Txn{by(1, scan(x, y), app(x, 1)), by(2, scan(x, y, row(x, 1)), app(x, 2)), by(3, read(x, 1, 2))},
	},
	{
		"lost update under a delete", LostUpdate,
		[]Txn{by(1, app(x, 1)), by(2, read(x, 1), app(x, 2)), by(3, del(x, 1)), by(4, read(x, 1, 2))},
		[]Txn{by(1, app(x, 1)), by(2, read(x, 1), app(x, 2)), by(3, del(x, 1, 2)), by(4, read(x, 1, 2))},
	},
	{
		"append lost to a delete", LostUpdate,
		[]Txn{by(1, app(x, 1)), by(2, read(x, 1), app(x, 2)), by(3, del(x, 1))},
		[]Txn{by(1, app(x, 1)), by(2, read(x), app(x, 2)), by(3, del(x, 1))},
	},
	{
		"two deletes of one version", LostUpdate,
		[]Txn{by(1, app(x, 1)), by(2, del(x, 1)), by(3, del(x, 1))},
		[]Txn{by(1, app(x, 1)), by(2, del(x, 1)), by(3, del(x))},
	},
	{
		"fractured read", FracturedRead,
		[]Txn{by(1, app(x, 1), app(y, 1)), by(2, read(x, 1), read(y))},
		[]Txn{by(1, app(x, 1), app(y, 1)), by(2, read(x, 1), read(y, 1))},
	},
	{
		"read skew", ReadSkew,
		[]Txn{by(1, app(x, 1)), by(2, read(x, 1), app(y, 1)), by(3, read(y, 1), read(x))},
		[]Txn{by(1, app(x, 1)), by(2, read(x, 1), app(y, 1)), by(3, read(y, 1), read(x, 1))},
	},
	{
		"stale read", StaleRead,
		[]Txn{by(1, app(x, 1)).at(0, 10), by(2, read(x)).at(20, 30), by(3, read(x, 1)).at(40, 50)},
		[]Txn{by(1, app(x, 1)).at(0, 20), by(2, read(x)).at(20, 30), by(3, read(x, 1)).at(40, 50)},
	},
	{
		"stale read over three", StaleRead,
		[]Txn{by(1, app(x, 1)).at(0, 10), by(2, read(y), app(z, 2)).at(20, 100), by(3, app(y, 3), read(x)).at(5, 100), by(4, read(x, 1)).at(200, 300)},
		[]Txn{by(1, app(x, 1)).at(0, 20), by(2, read(y), app(z, 2)).at(20, 100), by(3, app(y, 3), read(x)).at(5, 100), by(4, read(x, 1)).at(200, 300)},
	},
	{
		"stale read by the same process", StaleRead,
		[]Txn{by(1, app(x, 1)).at(0, 10), {ID: MakeTxnID(1, 2), Invoke: 10, Complete: 30, Outcome: Committed, Ops: []Op{read(x)}}, by(3, read(x, 1)).at(40, 50)},
		[]Txn{by(1, app(x, 1)).at(0, 10), {ID: MakeTxnID(2, 2), Invoke: 10, Complete: 30, Outcome: Committed, Ops: []Op{read(x)}}, by(3, read(x, 1)).at(40, 50)},
	},
	{
		"read of the future", RealTime,
		[]Txn{by(1, read(x, 1)).at(0, 10), by(2, app(x, 1)).at(20, 30)},
		[]Txn{by(1, read(x, 1)).at(0, 20), by(2, app(x, 1)).at(20, 30)},
	},
	{
		"phantom", Phantom,
		[]Txn{by(1, scan(x, z), app(9, 1)), by(2, read(9), app(y, 2))},
		[]Txn{by(1, scan(x, x), app(9, 1)), by(2, read(9), app(y, 2))},
	},
	{
		"phantom scan skew", Phantom,
		[]Txn{by(1, scan(1, 5), app(6, 1)), by(2, scan(6, 9), app(2, 2))},
		[]Txn{by(1, scan(1, 5), app(6, 1)), by(2, scan(6, 9, row(6, 1)), app(2, 2))},
	},
	{
		"phantom that misses one of two inserts", Phantom,
		[]Txn{by(1, app(x, 1), app(z, 1)), by(2, scan(x, z, row(x, 1)))},
		[]Txn{by(1, app(x, 1), app(z, 1)), by(2, scan(x, z, row(x, 1), row(z, 1)))},
	},
	{
		"phantom against real time", Phantom,
		[]Txn{by(1, app(y, 1)).at(0, 10), by(2, scan(x, z)).at(20, 30)},
		[]Txn{by(1, app(y, 1)).at(0, 10), by(2, scan(x, z, row(y, 1))).at(20, 30)},
	},
	{
		"phantom of a deleted key", Phantom,
		[]Txn{by(1, app(x, 1)).at(0, 1), by(2, del(x, 1), app(y, 2)).at(10, 50), by(3, scan(x, z, row(x, 1), row(y, 2))).at(10, 50)},
		[]Txn{by(1, app(x, 1)).at(0, 1), by(2, del(x, 1), app(y, 2)).at(10, 50), by(3, scan(x, z, row(y, 2))).at(10, 50)},
	},
	{
		"absent while alive", StaleRead,
		[]Txn{by(1, app(x, 1)).at(0, 10), by(2, read(x)).at(20, 30), by(3, del(x, 1)).at(40, 50)},
		[]Txn{by(1, app(x, 1)).at(0, 10), by(2, read(x)).at(20, 40), by(3, del(x, 1)).at(40, 50)},
	},
	{
		"deleted key still found", StaleRead,
		[]Txn{by(1, app(x, 1)).at(0, 10), by(2, del(x, 1)).at(20, 30), by(3, read(x, 1)).at(40, 50)},
		[]Txn{by(1, app(x, 1)).at(0, 10), by(2, del(x, 1)).at(20, 40), by(3, read(x, 1)).at(40, 50)},
	},
	{
		"found in an earlier life", StaleRead,
		[]Txn{by(1, app(x, 1)).at(0, 10), by(2, del(x, 1)).at(20, 30), by(3, app(x, 3)).at(40, 50), by(4, read(x, 1)).at(60, 70), by(5, del(x, 3)).at(80, 90)},
		[]Txn{by(1, app(x, 1)).at(0, 10), by(2, del(x, 1)).at(20, 30), by(3, app(x, 3)).at(40, 50), by(4, read(x, 3)).at(60, 70), by(5, del(x, 3)).at(80, 90)},
	},
	{
		"lost write", LostWrite,
		[]Txn{by(1, app(x, 1)).at(0, 10), by(2, app(x, 2)).at(20, 30), by(3, read(x, 2)).at(40, 50)},
		[]Txn{by(1, app(x, 1)).at(0, 10), by(2, app(x, 2)).at(20, 30), by(3, read(x, 1, 2)).at(40, 50)},
	},
	{
		"lost write of a new key", LostWrite,
		[]Txn{by(1, app(x, 1)).at(0, 10), by(3, read(x)).at(40, 50)},
		[]Txn{by(1, app(x, 1)).at(0, 10).ends(Unknown), by(3, read(x)).at(40, 50)},
	},
	{
		"lost write of the first of two", LostWrite,
		[]Txn{by(1, app(x, 1), app(x, 2)), by(2, read(x, 2))},
		[]Txn{by(1, app(x, 1), app(x, 2)), by(2, read(x, 1, 2))},
	},
	{
		"strict snapshot of the time before it began", StaleRead,
		[]Txn{by(1, app(x, 1)).at(0, 10), by(2, read(x)).at(11, 30).strict()},
		[]Txn{by(1, app(x, 1)).at(0, 10), by(2, read(x)).at(11, 30).stale(1)},
	},
	{
		"stale snapshot beyond its bound", StaleRead,
		[]Txn{by(1, app(x, 1)).at(0, 10), by(2, read(x)).at(31, 40).stale(20)},
		[]Txn{by(1, app(x, 1)).at(0, 10), by(2, read(x)).at(31, 40).stale(21)},
	},
	{
		"stale snapshot without its process's own write, beyond its bound", StaleRead,
		[]Txn{by(1, app(x, 1)).at(0, 10), by(2, app(x, 2)).at(12, 20), {ID: MakeTxnID(1, 2), Invoke: 60, Complete: 70, Snapshot: true, Stale: 45, Outcome: Committed, Ops: []Op{read(x)}}, by(3, read(x, 1, 2)).at(80, 90)},
		[]Txn{by(1, app(x, 1)).at(0, 10), by(2, app(x, 2)).at(12, 20), {ID: MakeTxnID(1, 2), Invoke: 60, Complete: 70, Snapshot: true, Stale: 50, Outcome: Committed, Ops: []Op{read(x)}}, by(3, read(x, 1, 2)).at(80, 90)},
	},
	{
		"stale snapshot of half a transaction", FracturedRead,
		[]Txn{by(1, app(x, 1), app(y, 1)).at(0, 10), by(2, read(x, 1), read(y)).at(20, 30).stale(100)},
		[]Txn{by(1, app(x, 1), app(y, 1)).at(0, 10), by(2, read(x), read(y)).at(20, 30).stale(100)},
	},
	{
		"stale snapshot of the later of two transactions", StaleRead,
		[]Txn{by(1, app(x, 1)).at(0, 10), by(2, app(y, 1)).at(20, 30), by(3, read(x), read(y, 1)).at(40, 50).stale(1000)},
		[]Txn{by(1, app(x, 1)).at(0, 10), by(2, app(y, 1)).at(20, 30), by(3, read(x, 1), read(y)).at(40, 50).stale(1000)},
	},
	{
		"two snapshots with two orders", G2Item,
		[]Txn{by(1, app(x, 1)).at(0, 30), by(2, app(y, 1)).at(0, 30), by(3, read(x, 1), read(y)).at(40, 50).stale(50), by(4, read(x), read(y, 1)).at(40, 50).stale(50)},
		[]Txn{by(1, app(x, 1)).at(0, 30), by(2, app(y, 1)).at(0, 30), by(3, read(x, 1), read(y)).at(40, 50).stale(50), by(4, read(x, 1), read(y)).at(40, 50).stale(50)},
	},
	{
		"stale snapshot of what comes later", RealTime,
		[]Txn{by(1, read(x, 1)).at(0, 10).stale(100), by(2, app(x, 1)).at(20, 30)},
		[]Txn{by(1, read(x, 1)).at(0, 20).stale(100), by(2, app(x, 1)).at(20, 30)},
	},
	{
		"stale scan of a deleted key, beyond its bound", StaleRead,
		[]Txn{by(1, app(x, 1)).at(0, 10), by(2, del(x, 1)).at(20, 30), by(3, scan(x, z, row(x, 1))).at(60, 70).stale(29)},
		[]Txn{by(1, app(x, 1)).at(0, 10), by(2, del(x, 1)).at(20, 30), by(3, scan(x, z, row(x, 1))).at(60, 70).stale(30)},
	},
	{
		"internal: own append not read", Internal,
		[]Txn{by(1, app(x, 1), read(x))},
		[]Txn{by(1, app(x, 1), read(x, 1))},
	},
	{
		"internal: own append not scanned", Internal,
		[]Txn{by(1, app(x, 1)), by(2, read(x, 1), app(x, 2), scan(x, z, row(x, 1)))},
		[]Txn{by(1, app(x, 1)), by(2, read(x, 1), app(x, 2), scan(x, z, row(x, 1, 2)))},
	},
	{
		"internal: own insert not scanned", Internal,
		[]Txn{by(1, app(y, 1), scan(x, z))},
		[]Txn{by(1, app(y, 1), scan(x, z, row(y, 1)))},
	},
	{
		"internal: own delete still found", Internal,
		[]Txn{by(1, app(x, 1)), by(2, del(x, 1), read(x, 1))},
		[]Txn{by(1, app(x, 1)), by(2, del(x, 1), read(x))},
	},
	{
		"internal: not repeatable", Internal,
		[]Txn{by(1, app(x, 1)), by(2, read(x), read(x, 1))},
		[]Txn{by(1, app(x, 1)), by(2, read(x, 1), read(x, 1))},
	},
	{
		"duplicate", Duplicate,
		[]Txn{by(1, app(x, 1)), by(2, app(x, 2)), by(3, read(x, 1, 2, 1))},
		[]Txn{by(1, app(x, 1)), by(2, app(x, 2)), by(3, read(x, 1, 2))},
	},
	{
		"incompatible order", IncompatibleOrder,
		[]Txn{by(1, app(x, 1)), by(2, app(x, 2)), by(3, read(x, 1, 2)), by(4, read(x, 2, 1))},
		[]Txn{by(1, app(x, 1)), by(2, app(x, 2)), by(3, read(x, 1, 2)), by(4, read(x, 1))},
	},
	{
		"own appends in the wrong order", IncompatibleOrder,
		[]Txn{by(1, app(x, 1), app(x, 2)), by(3, read(x, 2, 1))},
		[]Txn{by(1, app(x, 1), app(x, 2)), by(3, read(x, 1, 2))},
	},
	{
		"two lives without a delete", IncompatibleOrder,
		[]Txn{by(1, app(x, 1)), by(2, app(x, 2)), by(3, read(x, 1)), by(4, read(x, 2)), by(5, app(x, 5)), by(6, del(x, 5))},
		[]Txn{by(1, app(x, 1)), by(2, app(x, 2)), by(3, del(x, 1)), by(4, read(x, 2)), by(5, app(x, 5)), by(6, del(x, 5))},
	},
	{
		"unwritten value", Unwritten,
		[]Txn{by(1, app(x, 1)), by(2, read(x, 1, 7))},
		[]Txn{by(1, app(x, 1)), by(2, read(x, 1))},
	},
	{
		"scan out of order", ScanOrder,
		[]Txn{by(1, app(x, 1), app(y, 1)), by(2, scan(x, z, row(y, 1), row(x, 1)))},
		[]Txn{by(1, app(x, 1), app(y, 1)), by(2, scan(x, z, row(x, 1), row(y, 1)))},
	},
	{
		"scan outside its range", ScanOrder,
		[]Txn{by(1, app(x, 1), app(y, 1)), by(2, scan(x, x, row(x, 1), row(y, 1)))},
		[]Txn{by(1, app(x, 1), app(y, 1)), by(2, scan(x, y, row(x, 1), row(y, 1)))},
	},
	{
		"scan twice the same key", ScanOrder,
		[]Txn{by(1, app(x, 1)), by(2, scan(x, y, row(x, 1), row(x, 1)))},
		[]Txn{by(1, app(x, 1)), by(2, scan(x, y, row(x, 1)))},
	},
}

func mustCheck(t testing.TB, txns []Txn, o Options) *Report {
	t.Helper()
	h, err := FromTxns(txns)
	if err != nil {
		t.Fatal(err)
	}
	r, err := Check(h, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestAnomalies(t *testing.T) {
	for _, c := range anomalies {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			if r := mustCheck(t, c.bad, Options{}); !r.Has(c.kind) {
				t.Errorf("no %v in the bad history: %v", c.kind, r)
			}
			if r := mustCheck(t, c.legal, Options{}); !r.OK() {
				t.Errorf("the legal history: %v", r)
			}
			if orderExists(c.bad, true) {
				t.Error("the oracle accepts the bad history")
			}
			if !orderExists(c.legal, true) {
				t.Error("the oracle rejects the legal history")
			}
		})
	}
}

// What contradicts real time alone is serializable.
func TestSerializableIgnoresRealTime(t *testing.T) {
	for _, c := range anomalies {
		got, want := mustCheck(t, c.bad, Options{Serializable: true}).OK(), orderExists(c.bad, false)
		if got && !want && !hasDelete(c.bad) || !got && want {
			t.Errorf("%s: checker says serializable is %v, oracle %v", c.name, got, want)
		}
	}
}

func hasDelete(txns []Txn) bool {
	for _, t := range txns {
		for _, o := range t.Ops {
			if o.Kind == OpDelete {
				return true
			}
		}
	}
	return false
}

func TestReportText(t *testing.T) {
	r := mustCheck(t, []Txn{
		by(1, app(x, 1), app(y, 1)).at(0, 10),
		by(2, read(x, 1), scan(y, z)).at(5, 20),
	}, Options{})
	const want = `2 transactions, 2 considered, 2 edges: 1 anomalies
lost write, phantom, fractured read, G-single: T2.1 -rw(scan, lost)-> T1.1 -wr-> T2.1
  T2.1 committed [5, 20] ns: read key 1 = [1]; scan keys 2 to 3 = { }
  T1.1 committed [0, 10] ns: append 1 to key 1; append 1 to key 2
  T2.1 before T1.1 (rw(scan, lost)): key 2: T2.1 found absent, without 1, which T1.1 appended
  T1.1 before T2.1 (wr): key 1: T2.1 found 1, which T1.1 appended`
	if got := r.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if err := r.Err(); !errors.Is(err, ErrAnomaly) || !strings.Contains(err.Error(), "fractured read") {
		t.Errorf("error is %v", err)
	}
}

func TestTextOfLongResults(t *testing.T) {
	long := make([]Value, 100)
	rows := make([]Row, 20)
	for i := range long {
		long[i] = Value(i)
	}
	for i := range rows {
		rows[i] = Row{Key(i), long[:1]}
	}
	o := read(x, long...)
	if got := o.String(); !strings.HasPrefix(got, "read key 1 = [0 1 … 76 more … 78 79") || !strings.HasSuffix(got, " 99]") {
		t.Error(got)
	}
	o = scan(0, 30, rows...)
	if got := o.String(); !strings.HasSuffix(got, " 11:[0] … 8 more }") {
		t.Error(got)
	}
}

// Two processes may not record the same value, nor one two transactions at once.
func TestMalformed(t *testing.T) {
	twice := []Txn{by(1, app(x, 1)), by(2, app(x, 1)).ends(Aborted)}
	h, err := FromTxns(twice)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Check(h, Options{}); !errors.Is(err, ErrMalformed) {
		t.Errorf("a value appended twice: %v", err)
	}
	second := by(1).at(5, 30)
	second.ID = MakeTxnID(1, 2)
	for name, txns := range map[string][]Txn{
		"backwards":      {by(1).at(10, 9)},
		"one identifier": {by(1).at(0, 1), by(1).at(2, 3)},
		"two at once":    {by(1).at(0, 10), second},
		"outcome":        {by(1).ends(outcomeCount)},
		"snapshot":       {by(1, app(x, 1)).strict()},
		"stale":          {{ID: MakeTxnID(1, 1), Stale: 1}},
		"stale forever":  {by(1).at(-10, 0).stale(1<<63 - 1)},
		"operation":      {by(1, Op{Kind: opRow})},
	} {
		if _, err := FromTxns(txns); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
