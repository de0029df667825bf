package tpcc

import (
	"errors"
	"reflect"
	"testing"

	"drtmx/internal/rng"
)

func TestCodecsRoundTrip(t *testing.T) {
	m, info := loadedModel(t, 3)
	g := NewInputs(rng.New(9), info, info.RunConstants(rng.New(1)))
	var in, in2 NewOrderInput
	var out, out2 NewOrderOutput
	var sin, sin2 OrderStatusInput
	var sout, sout2 OrderStatusOutput
	for range 300 {
		g.NewOrder(2, &in)
		in.EntryD = -5
		if err := in2.Decode(in.AppendTo(nil)); err != nil || !reflect.DeepEqual(in, in2) {
			t.Fatalf("%+v comes back as %+v, %v", in, in2, err)
		}
		if _, err := m.newOrder(&in, &out); err == nil {
			if err := out2.Decode(out.AppendTo(nil)); err != nil || !reflect.DeepEqual(out, out2) {
				t.Fatalf("%+v comes back as %+v, %v", out, out2, err)
			}
		}
		g.OrderStatus(2, &sin)
		if err := sin2.Decode(sin.AppendTo(nil)); err != nil || sin2.C != sin.C || string(sin2.Last) != string(sin.Last) {
			t.Fatalf("%+v comes back as %+v, %v", sin, sin2, err)
		}
		if _, err := m.orderStatus(&sin, &sout); err != nil {
			t.Fatal(err)
		}
		if err := sout2.Decode(sout.AppendTo(nil)); err != nil || !reflect.DeepEqual(sout, sout2) {
			t.Fatalf("%+v comes back as %+v, %v", sout, sout2, err)
		}
	}
}

func TestBadInputsAreRefused(t *testing.T) {
	line := NewOrderLine{1, 1, 1}
	long := order(1, 1, 1)
	for range MaxLines + 1 {
		long.Lines = append(long.Lines, line)
	}
	for name, in := range map[string]*NewOrderInput{
		"warehouse": order(0, 1, 1, line), "district": order(1, 11, 1, line), "customer": order(1, 1, 4096, line),
		"no lines": order(1, 1, 1), "many lines": long, "item": order(1, 1, 1, NewOrderLine{0, 1, 1}),
		"supplier": order(1, 1, 1, NewOrderLine{1, MaxWarehouses + 1, 1}), "quantity": order(1, 1, 1, NewOrderLine{1, 1, 11}),
		"negative": order(-1, 1, 1, line), "no quantity": order(1, 1, 1, NewOrderLine{1, 1, 0}),
	} {
		if err := in.check(); !errors.Is(err, ErrInput) {
			t.Errorf("%s: %v", name, err)
		}
		if err := new(NewOrderInput).Decode(in.AppendTo(nil)); !errors.Is(err, ErrInput) {
			t.Errorf("%s, encoded: %v", name, err)
		}
	}
	for name, in := range map[string]*OrderStatusInput{
		"warehouse": {W: 0, D: 1, C: 1}, "district": {W: 1, D: 0, C: 1}, "customer": {W: 1, D: 1, C: -1},
		"no name": {W: 1, D: 1}, "long name": {W: 1, D: 1, Last: make([]byte, 17)},
	} {
		if err := in.check(); !errors.Is(err, ErrInput) {
			t.Errorf("%s: %v", name, err)
		}
		if err := new(OrderStatusInput).Decode(in.AppendTo(nil)); !errors.Is(err, ErrInput) {
			t.Errorf("%s, encoded: %v", name, err)
		}
	}
}

type codec interface {
	AppendTo([]byte) []byte
	Decode([]byte) error
}

// fuzzCodec checks that what decodes is the same after another round trip,
// also into used memory, and that nothing panics.
func fuzzCodec(f *testing.F, seed codec, fresh func() codec) {
	b := seed.AppendTo(nil)
	f.Add(b)
	f.Add(b[:len(b)-1])
	f.Add(append(b[:len(b):len(b)], 0))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		x, y := fresh(), fresh()
		_ = y.Decode(seed.AppendTo(nil))
		if x.Decode(b) != nil {
			_ = y.Decode(b)
			return
		}
		enc := x.AppendTo(nil)
		if err := y.Decode(enc); err != nil {
			t.Fatalf("%x decodes, its encoding %x does not: %v", b, enc, err)
		}
		if again := y.AppendTo(nil); string(again) != string(enc) {
			t.Fatalf("%x comes back as %x", enc, again)
		}
	})
}

func FuzzNewOrderInput(f *testing.F) {
	fuzzCodec(f, order(3, 4, 5, NewOrderLine{6, 7, 8}), func() codec { return &NewOrderInput{} })
}

func FuzzNewOrderOutput(f *testing.F) {
	fuzzCodec(f, &NewOrderOutput{
		Order: 9, Last: []byte("BAR"), Credit: []byte("GC"), Total: -3,
		Lines: []NewOrderLineOutput{{[]byte("name"), 10, 'B', 11, 12}},
	}, func() codec { return &NewOrderOutput{} })
}

func FuzzOrderStatusInput(f *testing.F) {
	fuzzCodec(f, &OrderStatusInput{W: 1, D: 2, Last: []byte("BARBARBAR")}, func() codec { return &OrderStatusInput{} })
}

func FuzzOrderStatusOutput(f *testing.F) {
	fuzzCodec(f, &OrderStatusOutput{
		Customer: 1, First: []byte("a"), Middle: []byte("OE"), Last: []byte("b"), Order: 5,
		Lines: []OrderStatusLine{{1, 2, 3, 4, 5}},
	}, func() codec { return &OrderStatusOutput{} })
}
