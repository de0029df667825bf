package history_test

import (
	"fmt"

	"drtmx/internal/history"
)

// Two clients each read a key, find it absent, and append to it.
func Example() {
	a, b := history.NewRecorder(1), history.NewRecorder(2)

	a.Begin(100)
	a.Read(7, nil)
	b.Begin(110)
	b.Read(7, nil)
	a.Append(7, 1001)
	a.End(history.Committed, 120)
	b.Append(7, 2001)
	b.End(history.Committed, 130)

	a.Begin(140)
	a.Read(7, []history.Value{1001, 2001})
	a.End(history.Committed, 150)

	h, err := history.Merge(a.Log(), b.Log())
	if err != nil {
		fmt.Println(err)
		return
	}
	report, err := history.Check(h, history.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(report)
	// Output:
	// 3 transactions, 3 considered, 6 edges: 1 anomalies
	// lost update, G-single: T2.1 -rw-> T1.1 -ww-> T2.1
	//   T2.1 committed [110, 130] ns: read key 7 = absent; append 2001 to key 7
	//   T1.1 committed [100, 120] ns: read key 7 = absent; append 1001 to key 7
	//   T2.1 before T1.1 (rw): key 7: T2.1 found absent, without 1001, which T1.1 appended
	//   T1.1 before T2.1 (ww): key 7: T2.1 appended 2001 right after what T1.1 appended: [1001 2001]
}

// A client executes what a generator plans, and records what it got.
func ExampleGenerator() {
	db := map[history.Key][]history.Value{}
	gen := history.Generator{Seed: 1, Process: 1, Keys: 4, ReadFraction: 0.5}
	rec := history.NewRecorder(1)
	var plan []history.PlanOp
	for now := int64(0); now < 1000; now += 10 {
		plan = gen.Next(plan[:0])
		rec.Begin(now)
		for _, o := range plan {
			switch o.Kind {
			case history.OpRead:
				rec.Read(o.Key, db[o.Key])
				gen.Observe(o.Key, len(db[o.Key]))
			case history.OpAppend:
				db[o.Key] = append(db[o.Key], o.Value)
				rec.Append(o.Key, o.Value)
			}
		}
		rec.End(history.Committed, now+5)
	}
	h, err := history.Merge(rec.Log())
	if err != nil {
		fmt.Println(err)
		return
	}
	report, err := history.Check(h, history.Options{})
	fmt.Println(report.Txns, report.OK(), err)
	// Output: 100 true <nil>
}
