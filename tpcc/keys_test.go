package tpcc

import (
	"encoding/json"
	"errors"
	"testing"

	"pgregory.net/rapid"

	"drtmx/internal/testseed"
	"drtmx/tables"
)

// Every part of every key is accepted at both of its limits and refused just
// beyond them, with the other parts at their largest.
func TestKeyLimits(t *testing.T) {
	const w, d, c, i, o, l, h = MaxWarehouses, Districts, MaxCustomers, MaxItems, MaxOrders, MaxLines, MaxHistory
	for name, k := range map[string]struct {
		limits []int64
		key    func(p []int64) (tables.Key, error)
		bits   uint
	}{
		"warehouse":  {[]int64{w}, func(p []int64) (tables.Key, error) { return WarehouseKey(p[0]) }, 20},
		"district":   {[]int64{w, d}, func(p []int64) (tables.Key, error) { return DistrictKey(p[0], p[1]) }, 24},
		"customer":   {[]int64{w, d, c}, func(p []int64) (tables.Key, error) { return CustomerKey(p[0], p[1], p[2]) }, 36},
		"history":    {[]int64{w, d, h}, func(p []int64) (tables.Key, error) { return HistoryKey(p[0], p[1], p[2]) }, 64},
		"item":       {[]int64{i}, func(p []int64) (tables.Key, error) { return ItemKey(p[0]) }, 17},
		"stock":      {[]int64{w, i}, func(p []int64) (tables.Key, error) { return StockKey(p[0], p[1]) }, 37},
		"order":      {[]int64{w, d, o}, func(p []int64) (tables.Key, error) { return OrderKey(p[0], p[1], p[2]) }, 52},
		"order line": {[]int64{w, d, o, l}, func(p []int64) (tables.Key, error) { return OrderLineKey(p[0], p[1], p[2], p[3]) }, 56},
	} {
		for part := range k.limits {
			p := append([]int64(nil), k.limits...)
			for _, v := range []int64{1, k.limits[part]} {
				p[part] = v
				key, err := k.key(p)
				if err != nil || k.bits < 64 && key.Num()>>k.bits != 0 {
					t.Errorf("%s %v: key %#x, %v", name, p, key, err)
				}
				if p[0] == w && name != "item" && key.Num()>>(k.bits-20) != w {
					t.Errorf("%s %v: key %#x lost its warehouse", name, p, key)
				}
			}
			for _, v := range []int64{-1 << 63, -1, 0, k.limits[part] + 1, 1<<63 - 1} {
				p[part] = v
				if _, err := k.key(p); !errors.Is(err, ErrKey) {
					t.Errorf("%s %v: %v, want ErrKey", name, p, err)
				}
			}
		}
	}
}

// Keys sort as their parts do and so differ when these differ.
func TestKeysKeepOrder(t *testing.T) {
	testseed.Check(t, func(t *rapid.T) {
		draw := func() [4]int64 {
			// Few values, the largest and those where 32 bits would run over.
			return [4]int64{
				rapid.SampledFrom([]int64{1, 2, 2147, 2148, 4096, MaxWarehouses}).Draw(t, "w"),
				rapid.Int64Range(1, Districts).Draw(t, "d"),
				rapid.SampledFrom([]int64{1, 2, 3001, 1 << 20, MaxOrders}).Draw(t, "o"),
				rapid.Int64Range(1, MaxLines).Draw(t, "l"),
			}
		}
		a, b := draw(), draw()
		less, equal := false, a == b
		for i := range a {
			if a[i] != b[i] {
				less = a[i] < b[i]
				break
			}
		}
		ka, kb := must(OrderLineKey(a[0], a[1], a[2], a[3])), must(OrderLineKey(b[0], b[1], b[2], b[3]))
		if (ka.Compare(kb) < 0) != less || (ka == kb) != equal {
			t.Fatalf("%v and %v have keys %#x and %#x", a, b, ka, kb)
		}
		k := must(OrderKey(a[0], a[1], a[2])).Num()
		if w, d, o := k>>(orderBits+districtBits), k>>orderBits&(1<<districtBits-1), k&MaxOrders; w != uint64(a[0]) || d != uint64(a[1]) || o != uint64(a[2]) {
			t.Fatalf("the key of order %v holds %d, %d, %d", a, w, d, o)
		}
	})
}

// All rows of warehouse w, and their index entries, are in partition (w-1) mod P.
func TestWarehouseStaysInItsPartition(t *testing.T) {
	s, err := NewSchema(Catalog())
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range []int64{1, 2, 3, 2146, 2147, 2148, 2149, 65_536, MaxWarehouses} {
		customer := s.customer.NewRow()
		customer.SetInt(s.c.wID, w)
		customer.SetInt(s.c.dID, Districts)
		customer.SetInt(s.c.id, MaxCustomers)
		customer.SetText(s.c.last, []byte("BARBARBAR"))
		last, err := s.byLast.EntryKey(tables.Key{}, customer)
		if err != nil {
			t.Fatal(err)
		}
		if lo, hi := lastNameRange(w, Districts, tables.DigestBytes([]byte("BARBARBAR"))); last.Compare(lo) < 0 || last.Compare(hi) > 0 {
			t.Errorf("warehouse %d: name key %#x is not in [%#x, %#x]", w, last, lo, hi)
		}
		order := s.orders.NewRow()
		order.SetInt(s.o.wID, w)
		order.SetInt(s.o.dID, Districts)
		order.SetInt(s.o.cID, MaxCustomers)
		order.SetInt(s.o.id, MaxOrders)
		byCustomer, err := s.byCustomer.EntryKey(tables.Key{}, order)
		if err != nil {
			t.Fatal(err)
		}
		if lo, hi := customerOrdersRange(w, Districts, MaxCustomers, MaxCustomers); byCustomer != lo || byCustomer.Compare(hi) > 0 || customerOrderID(byCustomer) != MaxOrders {
			t.Errorf("warehouse %d: the last order's key %#x should be the first of [%#x, %#x]", w, byCustomer, lo, hi)
		}
		for ix, key := range map[*tables.Index]tables.Key{
			s.warehouse.Primary(): must(WarehouseKey(w)),
			s.district.Primary():  must(DistrictKey(w, Districts)),
			s.customer.Primary():  must(CustomerKey(w, Districts, MaxCustomers)),
			s.history.Primary():   must(HistoryKey(w, Districts, MaxHistory)),
			s.newOrder.Primary():  must(OrderKey(w, Districts, MaxOrders)),
			s.orders.Primary():    must(OrderKey(w, 1, 1)),
			s.orderLine.Primary(): must(OrderLineKey(w, Districts, MaxOrders, MaxLines)),
			s.stock.Primary():     must(StockKey(w, MaxItems)),
			s.byLast:              last,
			s.byCustomer:          byCustomer,
		} {
			for n := 1; n <= 7; n++ {
				if got := ix.Partition.Of(key, n); got != int((w-1)%int64(n)) {
					t.Errorf("%s: warehouse %d is in partition %d of %d", ix.Name, w, got, n)
				}
			}
		}
	}
}

// What does not fit the parts of an index key fails the write, it does not wrap.
func TestSecondaryKeysRefuseOverflow(t *testing.T) {
	s, _ := NewSchema(Catalog())
	row := s.orders.NewRow()
	row.SetInt(s.o.wID, MaxWarehouses+1)
	if _, err := s.byCustomer.EntryKey(tables.Key{}, row); !errors.Is(err, tables.ErrRow) {
		t.Errorf("warehouse beyond the limit: %v", err)
	}
	row.SetInt(s.o.wID, 1)
	row.SetInt(s.o.id, MaxOrders+1)
	if _, err := s.byCustomer.EntryKey(tables.Key{}, row); !errors.Is(err, tables.ErrRow) {
		t.Errorf("order beyond the limit: %v", err)
	}
}

func TestSchema(t *testing.T) {
	s, err := NewSchema(Catalog())
	if err != nil {
		t.Fatal(err)
	}
	if n := s.orderLine.RowBytes(); n > 96 {
		t.Errorf("an ORDER_LINE row has %d bytes, want at most 96", n)
	}
	if !s.item.Replicated() {
		t.Error("ITEM is not replicated")
	}
	b, err := json.Marshal(Catalog())
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := tables.ParseCatalog(b)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewSchema(parsed); err != nil {
		t.Errorf("a catalogue from the network: %v", err)
	}
	defs := Definitions()
	defs[0].Columns[0].Type = tables.Int64
	other, err := tables.NewCatalog(defs...)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewSchema(other); !errors.Is(err, ErrCatalog) {
		t.Errorf("another catalogue: %v", err)
	}
	if _, err := NewSchema(nil); !errors.Is(err, ErrCatalog) {
		t.Errorf("no catalogue: %v", err)
	}
}
