package tpcc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"drtmx/internal/rng"
)

// Clause 2.7.4.2, against the rows: the oldest order of each district, until
// districts run empty and are skipped.
func TestDelivery(t *testing.T) {
	m, info := loadedModel(t, 2)
	s := m.s
	g := NewInputs(rng.New(5), info, info.RunConstants(rng.New(6)))
	var in DeliveryInput
	var out DeliveryOutput
	// One batch at warehouse 2, which warehouse 1's must leave alone.
	if _, err := m.delivery(&DeliveryInput{W: 2, Carrier: 1, Date: 1}, &out); err != nil {
		t.Fatal(err)
	}
	for o := int64(43); o <= 61; o++ {
		before := m.clone()
		g.Delivery(1, &in)
		in.Date = o
		steps, err := m.delivery(&in, &out)
		wantSteps, wantOrder := 3, o
		if o == 61 {
			wantSteps, wantOrder = 1, 0
		}
		if err != nil || steps != wantSteps || out.Delivered()+out.Skipped() != Districts {
			t.Fatalf("%+v: %d steps, %+v %v", in, steps, out, err)
		}
		for d := int64(1); d <= Districts; d++ {
			if out.Orders[d-1] != wantOrder {
				t.Fatalf("district %d: order %d, want %d", d, out.Orders[d-1], wantOrder)
			}
			if wantOrder != 0 {
				checkDelivered(t, before, m, &in, d, o)
			}
		}
	}
	if n := len(m.rows(s.newOrder)); n != 17*Districts { // warehouse 2 alone
		t.Errorf("%d rows in new_order", n)
	}
	mustHold(t, m, CheckConfig{AtRest: true})
}

func checkDelivered(t *testing.T, before, m *model, in *DeliveryInput, d, o int64) {
	t.Helper()
	s, key := m.s, must(OrderKey(in.W, d, o))
	row := m.get(s.orders, key)
	if row.Int(s.o.carrierID) != in.Carrier {
		t.Errorf("order %d.%d.%d: carrier %d", in.W, d, o, row.Int(s.o.carrierID))
	}
	amount := int64(0)
	for n := int64(1); n <= row.Int(s.o.olCnt); n++ {
		line := m.get(s.orderLine, must(OrderLineKey(in.W, d, o, n)))
		amount += line.Int(s.ol.amount)
		if line.Int(s.ol.deliveryD) != in.Date {
			t.Errorf("line %d.%d.%d.%d: delivered at %d", in.W, d, o, n, line.Int(s.ol.deliveryD))
		}
	}
	customer := must(CustomerKey(in.W, d, row.Int(s.o.cID)))
	was, is, f := before.get(s.customer, customer), m.get(s.customer, customer), &s.c
	if is.Int(f.balance) != was.Int(f.balance)+amount || is.Int(f.deliveryCnt) != was.Int(f.deliveryCnt)+1 ||
		is.Int(f.ytdPayment) != was.Int(f.ytdPayment) {
		t.Errorf("customer of %d.%d.%d: balance %d, was %d, order of %d", in.W, d, o, is.Int(f.balance), was.Int(f.balance), amount)
	}
}

func TestDeliveryCounterFull(t *testing.T) {
	m, _ := loadedModel(t, 1)
	s := m.s
	for o := int64(43); o <= 44; o++ { // one after the other, of one customer
		row := m.get(s.orders, must(OrderKey(1, 1, o)))
		row.SetInt(s.o.cID, 7)
		if err := m.put(s.orders, must(OrderKey(1, 1, o)), row); err != nil {
			t.Fatal(err)
		}
	}
	row := m.get(s.customer, must(CustomerKey(1, 1, 7)))
	row.SetInt(s.c.deliveryCnt, math.MaxInt32-1)
	if err := m.put(s.customer, must(CustomerKey(1, 1, 7)), row); err != nil {
		t.Fatal(err)
	}
	var out DeliveryOutput
	if _, err := m.delivery(&DeliveryInput{W: 1, Carrier: 1}, &out); err != nil {
		t.Fatalf("the last c_delivery_cnt: %v", err)
	}
	if _, err := m.delivery(&DeliveryInput{W: 1, Carrier: 1}, &out); !errors.Is(err, ErrCounterFull) {
		t.Fatalf("c_delivery_cnt is full: %v", err)
	}
}

// Deferred deliveries are executed in order, recorded, and bounded in number.
func TestDeliveryQueue(t *testing.T) {
	e := newEngine(t, 1, 1)
	var log bytes.Buffer
	var settled []DeliveryRecord
	q := NewDeliveryQueue(DeliveryQueueConfig{Size: 20, Log: &log, Done: func(r DeliveryRecord) { settled = append(settled, r) }})
	if err := q.Submit(DeliveryInput{W: 1, Carrier: 11}); !errors.Is(err, ErrInput) {
		t.Errorf("carrier 11: %v", err)
	}
	for i := range 20 {
		if err := q.Submit(DeliveryInput{W: 1, Carrier: int64(i)%10 + 1}); err != nil {
			t.Fatal(err)
		}
	}
	if err := q.Submit(DeliveryInput{W: 1, Carrier: 1}); !errors.Is(err, ErrQueueFull) || q.Len() != 20 {
		t.Errorf("queue of 20 with %d in it: %v", q.Len(), err)
	}
	q.Close()
	q.Close()
	if err := q.Submit(DeliveryInput{W: 1, Carrier: 1}); !errors.Is(err, ErrQueueClosed) {
		t.Errorf("closed: %v", err)
	}
	if err := q.Run(t.Context(), e.terminal(t, TerminalConfig{})); err != nil {
		t.Fatal(err)
	}
	// 18 undelivered orders in each of ten districts: the last two find none.
	want := DeliveryStats{Submitted: 20, Refused: 1, Finished: 20, Delivered: 180, Skipped: 20, WithSkips: 2}
	if got := q.Stats(); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	lines := strings.Split(strings.TrimSuffix(log.String(), "\n"), "\n")
	if len(lines) != 20 || len(settled) != 20 {
		t.Fatalf("%d lines, %d records", len(lines), len(settled))
	}
	for i, line := range lines {
		var r DeliveryRecord
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		order := int64(43 + i)
		if i >= 18 {
			order = 0
		}
		if r.W != 1 || r.Carrier != int64(i)%10+1 || r.Orders[0] != order || r.Orders[9] != order || r.Error != "" ||
			r.Started.Before(r.Queued) || r.Finished.Before(r.Started) || r.Delivered+r.Skipped != Districts {
			t.Errorf("%s", line)
		}
	}
	e.mustHold(t)
}

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, errors.New("disk full") }

// A log that cannot be written ends the worker, and so does its context.
func TestDeliveryQueueEnds(t *testing.T) {
	e := newEngine(t, 1, 1)
	term := e.terminal(t, TerminalConfig{})
	q := NewDeliveryQueue(DeliveryQueueConfig{Log: failingWriter{}})
	if err := q.Submit(DeliveryInput{W: 1, Carrier: 1}); err != nil {
		t.Fatal(err)
	}
	if err := q.Run(t.Context(), term); err == nil || !strings.Contains(err.Error(), "disk full") {
		t.Errorf("log fails: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := q.Run(ctx, term); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("nothing to do until the deadline: %v", err)
	}
	if err := q.Submit(DeliveryInput{W: 1, Carrier: 1}); err != nil {
		t.Fatal(err)
	}
	if err := q.Run(ctx, term); !errors.Is(err, context.DeadlineExceeded) || q.Len() != 1 {
		t.Errorf("cancelled: %v, %d wait", err, q.Len())
	}
}
