package tpcc

import (
	"errors"
	"math"
	"testing"

	"drtmx/internal/rng"
	"drtmx/internal/testseed"
)

// near fails unless got is within five standard deviations of n·p.
func near(t *testing.T, what string, got, n int, p float64) {
	t.Helper()
	mean, sigma := float64(n)*p, math.Sqrt(float64(n)*p*(1-p))
	if math.Abs(float64(got)-mean) > 5*sigma {
		t.Errorf("%s: %d of %d, want about %.0f", what, got, n, mean)
	}
}

// uniform is a chi-square test with a bound of five standard deviations.
func uniform(t *testing.T, what string, counts []int) {
	t.Helper()
	n := 0
	for _, c := range counts {
		n += c
	}
	expect, chi := float64(n)/float64(len(counts)), 0.0
	for _, c := range counts {
		chi += (float64(c) - expect) * (float64(c) - expect) / expect
	}
	free := float64(len(counts) - 1)
	if math.Abs(chi-free) > 5*math.Sqrt(2*free) {
		t.Errorf("%s: chi-square %.0f with %.0f degrees of freedom", what, chi, free)
	}
}

func fullInfo(warehouses int64) LoadInfo {
	return LoadInfo{Warehouses: warehouses, Scale: FullScale(), CLast: 123}
}

// Clause 2.4.1.
func TestNewOrderInputs(t *testing.T) {
	const n = 40_000
	info := fullInfo(5)
	g := NewInputs(rng.New(1), info, info.RunConstants(rng.New(2)))
	districts, lineCounts := make([]int, Districts), make([]int, MaxLines-MinLines+1)
	quantities, suppliers := make([]int, 10), make([]int, 4)
	items := map[int64]int{}
	rollbacks, remote, lines := 0, 0, 0
	var in NewOrderInput
	for range n {
		g.NewOrder(3, &in)
		if err := in.check(); err != nil || in.W != 3 {
			t.Fatalf("%+v: %v", in, err)
		}
		within(t, "c_id", in.C, 1, 3000)
		districts[in.D-1]++
		lineCounts[len(in.Lines)-MinLines]++
		lines += len(in.Lines)
		for i, l := range in.Lines {
			if l.Item == info.Scale.Items+1 {
				rollbacks++
				if i != len(in.Lines)-1 {
					t.Fatalf("unused item in line %d of %d", i+1, len(in.Lines))
				}
			} else {
				within(t, "ol_i_id", l.Item, 1, 100_000)
				items[l.Item]++
			}
			quantities[l.Quantity-1]++
			if l.SupplyW != 3 {
				remote++
				suppliers[(l.SupplyW+1)%5]++ // 4, 5, 1, 2
			}
		}
	}
	uniform(t, "districts", districts)
	uniform(t, "lines per order", lineCounts)
	uniform(t, "quantities", quantities)
	uniform(t, "remote suppliers", suppliers)
	near(t, "rollbacks", rollbacks, n, 0.01)
	near(t, "remote lines", remote, lines, 0.01)
	// NURand(8191): about six in seven items of the lines are drawn from
	// few thousand hot ones; uniform draws would give 98 % distinct.
	if distinct := float64(len(items)) / 100_000; distinct > 0.95 {
		t.Errorf("%.0f %% of the items were ordered: the draws are uniform", 100*distinct)
	}
}

func TestOneWarehouseHasNoRemoteLines(t *testing.T) {
	info := fullInfo(1)
	g := NewInputs(rng.New(1), info, info.RunConstants(rng.New(2)))
	var in NewOrderInput
	for range 5_000 {
		g.NewOrder(1, &in)
		for _, l := range in.Lines {
			if l.SupplyW != 1 {
				t.Fatalf("line from warehouse %d of 1", l.SupplyW)
			}
		}
	}
}

// Clause 2.6.1.
func TestOrderStatusInputs(t *testing.T) {
	const n = 50_000
	info := fullInfo(5)
	constants := info.RunConstants(rng.New(2))
	if !rng.ValidCDelta(info.CLast, constants.CLast) {
		t.Errorf("C-Run %d for C-Load %d", constants.CLast, info.CLast)
	}
	g := NewInputs(rng.New(1), info, constants)
	known := map[string]bool{}
	for i := range int64(1000) {
		known[string(LastName(nil, i))] = true
	}
	districts, byName, names := make([]int, Districts), 0, map[string]int{}
	var in OrderStatusInput
	for range n {
		g.OrderStatus(2, &in)
		if err := in.check(); err != nil || in.W != 2 {
			t.Fatalf("%+v: %v", in, err)
		}
		districts[in.D-1]++
		if in.C == 0 {
			byName++
			names[string(in.Last)]++
			if !known[string(in.Last)] {
				t.Fatalf("name %q", in.Last)
			}
		} else {
			within(t, "c_id", in.C, 1, 3000)
		}
	}
	uniform(t, "districts", districts)
	near(t, "by last name", byName, n, 0.6)
	most := 0
	for _, c := range names {
		most = max(most, c)
	}
	if most < 3*byName/1000 {
		t.Errorf("the commonest name came %d times in %d: the draws are uniform", most, byName)
	}
}

// Clauses 2.5.1, 2.7.1 and 2.8.1.
func TestPaymentDeliveryStockLevelInputs(t *testing.T) {
	const n = 50_000
	info := fullInfo(5)
	g := NewInputs(rng.New(1), info, info.RunConstants(rng.New(2)))
	districts, theirs, warehouses := make([]int, Districts), make([]int, Districts), make([]int, 4)
	carriers, thresholds, amounts := make([]int, MaxCarrier), make([]int, MaxThreshold-MinThreshold+1), make([]int, 100)
	remote, byName := 0, 0
	var in PaymentInput
	var delivery DeliveryInput
	var level StockLevelInput
	for range n {
		g.Payment(3, &in)
		if err := in.check(); err != nil || in.W != 3 || in.CW == 3 && in.CD != in.D {
			t.Fatalf("%+v: %v", in, err)
		}
		districts[in.D-1]++
		amounts[(in.Amount-MinPayment)*100/(MaxPayment-MinPayment+1)]++
		if in.CW != 3 {
			remote++
			warehouses[(in.CW+1)%5]++
			theirs[in.CD-1]++
		}
		byName += btoi(in.C == 0)
		g.Delivery(3, &delivery)
		carriers[delivery.Carrier-1]++
		g.StockLevel(3, 4, &level)
		thresholds[level.Threshold-MinThreshold]++
		if err := errors.Join(delivery.check(), level.check()); err != nil || delivery.W != 3 || level.W != 3 || level.D != 4 {
			t.Fatalf("%+v %+v: %v", delivery, level, err)
		}
	}
	uniform(t, "districts", districts)
	uniform(t, "districts of remote customers", theirs)
	uniform(t, "remote warehouses", warehouses)
	uniform(t, "amounts", amounts)
	uniform(t, "carriers", carriers)
	uniform(t, "thresholds", thresholds)
	near(t, "remote payments", remote, n, 0.15)
	near(t, "payments by last name", byName, n, 0.6)
	alone := fullInfo(1)
	g = NewInputs(rng.New(1), alone, alone.RunConstants(rng.New(2)))
	for range 1000 {
		if g.Payment(1, &in); in.CW != 1 {
			t.Fatalf("customer of warehouse %d of 1", in.CW)
		}
	}
}

func TestInputsDoNotAllocate(t *testing.T) {
	if testseed.Race {
		t.Skip("the race detector allocates")
	}
	info := fullInfo(5)
	g := NewInputs(rng.New(1), info, info.RunConstants(rng.New(2)))
	newOrder, status := NewOrderInput{Lines: make([]NewOrderLine, 0, MaxLines)}, OrderStatusInput{Last: make([]byte, 0, lastBytesMax)}
	payment := PaymentInput{Last: make([]byte, 0, lastBytesMax)}
	var delivery DeliveryInput
	var level StockLevelInput
	if n := testing.AllocsPerRun(1000, func() {
		g.NewOrder(1, &newOrder)
		g.Payment(1, &payment)
		g.OrderStatus(1, &status)
		g.Delivery(1, &delivery)
		g.StockLevel(1, 1, &level)
	}); n > 0 {
		t.Errorf("%.1f allocations for one input of each type", n)
	}
}
