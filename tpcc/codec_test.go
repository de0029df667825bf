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

func TestCodecsOfPaymentDeliveryStockLevelRoundTrip(t *testing.T) {
	m, info := loadedModel(t, 3)
	g := NewInputs(rng.New(9), info, info.RunConstants(rng.New(1)))
	var pin, pin2 PaymentInput
	var pout, pout2 PaymentOutput
	var din DeliveryInput
	var dout, dout2 DeliveryOutput
	var lin, lin2 StockLevelInput
	var lout, lout2 StockLevelOutput
	for i := range int64(300) {
		g.Payment(2, &pin)
		if err := pin2.Decode(pin.AppendTo(nil)); err != nil || string(pin2.AppendTo(nil)) != string(pin.AppendTo(nil)) || pin2.Amount != pin.Amount {
			t.Fatalf("%+v comes back as %+v, %v", pin, pin2, err)
		}
		if _, err := m.payment(&pin, &pout); err != nil {
			t.Fatal(err)
		}
		if err := pout2.Decode(pout.AppendTo(nil)); err != nil || !reflect.DeepEqual(pout, pout2) {
			t.Fatalf("%+v comes back as %+v, %v", pout, pout2, err)
		}
		g.Delivery(2, &din)
		part, part2 := deliveryPart{din, i%Districts + 1, Districts}, deliveryPart{}
		if err := part2.Decode(part.AppendTo(nil)); err != nil || part2 != part {
			t.Fatalf("%+v comes back as %+v, %v", part, part2, err)
		}
		if _, err := m.delivery(&din, &dout); err != nil {
			t.Fatal(err)
		}
		dout2 = DeliveryOutput{Done: Districts}
		if err := dout2.decodePart(dout.appendPart(nil, 1, Districts), 1, Districts); err != nil || dout != dout2 {
			t.Fatalf("%+v comes back as %+v, %v", dout, dout2, err)
		}
		g.StockLevel(2, 3, &lin)
		if err := lin2.Decode(lin.AppendTo(nil)); err != nil || lin2 != lin {
			t.Fatalf("%+v comes back as %+v, %v", lin, lin2, err)
		}
		lout.Low = i
		if err := lout2.Decode(lout.AppendTo(nil)); err != nil || lout2 != lout {
			t.Fatalf("%+v comes back as %+v, %v", lout, lout2, err)
		}
	}
}

// refused checks that inputs are refused before and after encoding.
func refused(t *testing.T, name string, in interface {
	codec
	check() error
},
) {
	t.Helper()
	if err := in.check(); !errors.Is(err, ErrInput) {
		t.Errorf("%s: %v", name, err)
	}
	if err := in.Decode(in.AppendTo(nil)); !errors.Is(err, ErrInput) {
		t.Errorf("%s, encoded: %v", name, err)
	}
}

func TestBadInputsOfPaymentDeliveryStockLevelAreRefused(t *testing.T) {
	for name, change := range map[string]func(*PaymentInput){
		"warehouse": func(in *PaymentInput) { in.W = 0 }, "district": func(in *PaymentInput) { in.D = 11 },
		"customer's warehouse": func(in *PaymentInput) { in.CW = MaxWarehouses + 1 }, "customer's district": func(in *PaymentInput) { in.CD = 0 },
		"customer": func(in *PaymentInput) { in.C = MaxCustomers + 1 }, "no name": func(in *PaymentInput) { in.C = 0 },
		"long name": func(in *PaymentInput) { in.C, in.Last = 0, make([]byte, 17) },
		"amount":    func(in *PaymentInput) { in.Amount = 99 }, "large amount": func(in *PaymentInput) { in.Amount = 5_000_01 },
		"negative amount": func(in *PaymentInput) { in.Amount = -100 },
	} {
		in := PaymentInput{W: 1, D: 1, CW: MaxWarehouses, CD: Districts, C: MaxCustomers, Amount: MaxPayment}
		if err := in.check(); err != nil {
			t.Fatal(err)
		}
		change(&in)
		refused(t, "PAYMENT: "+name, &in)
	}
	for name, in := range map[string]deliveryPart{
		"warehouse": {DeliveryInput{0, 1, 0}, 1, 1}, "no carrier": {DeliveryInput{1, 0, 0}, 1, 1}, "carrier": {DeliveryInput{1, 11, 0}, 1, 1},
		"no district": {DeliveryInput{1, 1, 0}, 0, 1}, "district": {DeliveryInput{1, 1, 0}, 1, 11}, "order": {DeliveryInput{1, 1, 0}, 3, 2},
	} {
		refused(t, "DELIVERY: "+name, &in)
	}
	for name, in := range map[string]StockLevelInput{
		"warehouse": {0, 1, 10}, "district": {1, 0, 10}, "low threshold": {1, 1, 9}, "high threshold": {1, 1, 21},
	} {
		refused(t, "STOCK-LEVEL: "+name, &in)
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

func FuzzPaymentInput(f *testing.F) {
	fuzzCodec(f, &PaymentInput{W: 1, D: 2, CW: 3, CD: 4, Last: []byte("BARBARBAR"), Amount: 500, Date: -5}, func() codec { return &PaymentInput{} })
}

func FuzzPaymentOutput(f *testing.F) {
	a := Address{[]byte("a"), []byte("b"), []byte("c"), []byte("d"), []byte("e")}
	fuzzCodec(f, &PaymentOutput{
		Warehouse: a, District: a, Address: a, Customer: 1, First: []byte("f"), Credit: []byte("BC"), Data: make([]byte, 200), Serial: 9,
	}, func() codec { return &PaymentOutput{} })
}

func FuzzDeliveryInput(f *testing.F) {
	fuzzCodec(f, &deliveryPart{DeliveryInput{1, 2, 3}, 4, 5}, func() codec { return &deliveryPart{} })
}

// allDistricts is the output of a DELIVERY in one database transaction.
type allDistricts struct{ DeliveryOutput }

func (a *allDistricts) AppendTo(b []byte) []byte { return a.appendPart(b, 1, Districts) }
func (a *allDistricts) Decode(b []byte) error    { return a.decodePart(b, 1, Districts) }

func FuzzDeliveryOutput(f *testing.F) {
	fuzzCodec(f, &allDistricts{DeliveryOutput{Orders: [Districts]int64{1, 0, MaxOrders}}}, func() codec { return &allDistricts{} })
}

func FuzzStockLevelInput(f *testing.F) {
	fuzzCodec(f, &StockLevelInput{1, 2, 15}, func() codec { return &StockLevelInput{} })
}

func FuzzStockLevelOutput(f *testing.F) {
	fuzzCodec(f, &StockLevelOutput{300}, func() codec { return &StockLevelOutput{} })
}
