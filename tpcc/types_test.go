package tpcc

import (
	"fmt"
	"testing"
)

// The names are a contract: reports and scripts use them.
func TestTypeNames(t *testing.T) {
	if got := fmt.Sprint(Types); got != "[NEW_ORDER PAYMENT ORDER_STATUS DELIVERY STOCK_LEVEL]" {
		t.Error(got)
	}
	if got := Type(9).String(); got != "Type(9)" {
		t.Error(got)
	}
}
