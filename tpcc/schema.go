package tpcc

import (
	"errors"
	"fmt"

	"drtmx/tables"
)

// Names of the tables (clause 1.3.1) and of their secondary indexes.
const (
	TableWarehouse = "warehouse"
	TableDistrict  = "district"
	TableCustomer  = "customer"
	TableHistory   = "history"
	TableNewOrder  = "new_order"
	TableOrders    = "orders"
	TableOrderLine = "order_line"
	TableItem      = "item"
	TableStock     = "stock"
	// TableLoadInfo holds one row, written last: the parameters of the load.
	TableLoadInfo = "load_info"

	IndexCustomerByLast   = "by_last"     // of customer: w, d, digest of c_last, c
	IndexOrdersByCustomer = "by_customer" // of orders: w, d, c, o descending
)

// ErrCatalog reports a database whose tables are not those of this package.
var ErrCatalog = errors.New("tpcc: not a TPC-C catalogue of this version")

// Definitions returns the definitions of the tables of clause 1.3.1 and of
// TableLoadInfo. Every key but ITEM's has the warehouse in its highest bits, and
// every table and index but ITEM is partitioned by it: warehouse w is in partition
// (w-1) mod the number of partitions. ITEM is replicated.
func Definitions() []tables.Def {
	return []tables.Def{
		warehouseDef(), districtDef(), customerDef(), historyDef(), newOrderDef(),
		ordersDef(), orderLineDef(), itemDef(), stockDef(), loadInfoDef(),
	}
}

// Catalog returns the catalogue of Definitions. All calls return the same one.
func Catalog() *tables.Catalog { return StoredXStore.Catalog() }

func byWarehouse(shift uint) tables.Partitioning {
	return tables.Partitioning{Kind: tables.ByBits, Shift: shift, Base: 1}
}

func i64(name string) tables.Column { return tables.Column{Name: name, Type: tables.Int64} }
func i32(name string) tables.Column { return tables.Column{Name: name, Type: tables.Int32} }
func i16(name string) tables.Column { return tables.Column{Name: name, Type: tables.Int16} }
func text(name string, size int) tables.Column {
	return tables.Column{Name: name, Type: tables.Text, Size: size}
}

// address is the run of columns that WAREHOUSE, DISTRICT and CUSTOMER share.
func address(prefix string) []tables.Column {
	return []tables.Column{
		text(prefix+"street_1", 20), text(prefix+"street_2", 20), text(prefix+"city", 20),
		text(prefix+"state", 2), text(prefix+"zip", 9),
	}
}

func columns(parts ...any) []tables.Column {
	var all []tables.Column
	for _, p := range parts {
		switch p := p.(type) {
		case tables.Column:
			all = append(all, p)
		case []tables.Column:
			all = append(all, p...)
		}
	}
	return all
}

func warehouseDef() tables.Def {
	return tables.Def{
		Name: TableWarehouse, Primary: tables.Hash, Partition: byWarehouse(0),
		Columns: columns(i32("w_id"), text("w_name", 10), address("w_"), i32("w_tax"), i64("w_ytd")),
	}
}

func districtDef() tables.Def {
	return tables.Def{
		Name: TableDistrict, Primary: tables.Hash, Partition: byWarehouse(districtBits),
		Columns: columns(i16("d_id"), i32("d_w_id"), text("d_name", 10), address("d_"),
			// d_next_h_id is an addition of drtmx: it numbers the district's
			// HISTORY rows, for which the specification has no key (clause
			// 1.3.1). A payment writes the district row anyway.
			i32("d_tax"), i64("d_ytd"), i32("d_next_o_id"), i64("d_next_h_id")),
	}
}

func customerDef() tables.Def {
	return tables.Def{
		Name: TableCustomer, Primary: tables.Hash, Partition: byWarehouse(districtBits + customerBits),
		Columns: columns(i32("c_id"), i16("c_d_id"), i32("c_w_id"),
			text("c_first", 16), text("c_middle", 2), text("c_last", 16), address("c_"),
			text("c_phone", 16), i64("c_since"), text("c_credit", 2), i64("c_credit_lim"),
			i32("c_discount"), i64("c_balance"), i64("c_ytd_payment"), i32("c_payment_cnt"),
			i32("c_delivery_cnt"), text("c_data", 500)),
		Secondary: []tables.Secondary{{
			Name: IndexCustomerByLast, Include: []string{"c_last", "c_first"},
			Partition: byWarehouse(districtBits + lastNameBits + customerBits),
			Key: []tables.KeyPart{
				{Column: "c_w_id", Bits: warehouseBits, How: tables.Value},
				{Column: "c_d_id", Bits: districtBits, How: tables.Value},
				{Column: "c_last", Bits: lastNameBits, How: tables.Digest},
				{Column: "c_id", Bits: customerBits, How: tables.Value},
			},
		}},
	}
}

func historyDef() tables.Def {
	return tables.Def{
		Name: TableHistory, Primary: tables.Ordered, Partition: byWarehouse(districtBits + serialBits),
		Columns: columns(i32("h_c_id"), i16("h_c_d_id"), i32("h_c_w_id"), i16("h_d_id"), i32("h_w_id"),
			i64("h_date"), i64("h_amount"), text("h_data", 24)),
	}
}

func newOrderDef() tables.Def {
	return tables.Def{
		Name: TableNewOrder, Primary: tables.Ordered, Partition: byWarehouse(districtBits + orderBits),
		Columns: columns(i32("no_o_id"), i16("no_d_id"), i32("no_w_id")),
	}
}

func ordersDef() tables.Def {
	return tables.Def{
		Name: TableOrders, Primary: tables.Hash, Partition: byWarehouse(districtBits + orderBits),
		Columns: columns(i32("o_id"), i16("o_d_id"), i32("o_w_id"), i32("o_c_id"), i64("o_entry_d"),
			i16("o_carrier_id"), i16("o_ol_cnt"), i16("o_all_local")),
		Secondary: []tables.Secondary{{
			// Entries hold only the order's key, eight bytes, so that they are
			// inline in the leaf.
			Name:      IndexOrdersByCustomer,
			Partition: byWarehouse(districtBits + customerBits + orderBits),
			Key: []tables.KeyPart{
				{Column: "o_w_id", Bits: warehouseBits, How: tables.Value},
				{Column: "o_d_id", Bits: districtBits, How: tables.Value},
				{Column: "o_c_id", Bits: customerBits, How: tables.Value},
				{Column: "o_id", Bits: orderBits, How: tables.Descending},
			},
		}},
	}
}

func orderLineDef() tables.Def {
	return tables.Def{
		Name: TableOrderLine, Primary: tables.Ordered, Partition: byWarehouse(districtBits + orderBits + lineBits),
		Columns: columns(i32("ol_o_id"), i16("ol_d_id"), i32("ol_w_id"), i16("ol_number"), i32("ol_i_id"),
			i32("ol_supply_w_id"), i64("ol_delivery_d"), i16("ol_quantity"), i64("ol_amount"), text("ol_dist_info", 24)),
	}
}

func itemDef() tables.Def {
	return tables.Def{
		Name: TableItem, Primary: tables.Hash, Partition: tables.Partitioning{Kind: tables.Replicated},
		Columns: columns(i32("i_id"), i32("i_im_id"), text("i_name", 24), i64("i_price"), text("i_data", 50)),
	}
}

// stockDef has the columns that an order changes next to each other, in three words:
// then the version of an overwritten row has only these words.
func stockDef() tables.Def {
	cols := columns(i32("s_i_id"), i32("s_w_id"),
		i16("s_quantity"), i64("s_ytd"), i32("s_order_cnt"), i32("s_remote_cnt"))
	for d := 1; d <= Districts; d++ {
		cols = append(cols, text(distColumn(d), 24))
	}
	return tables.Def{
		Name: TableStock, Primary: tables.Hash, Partition: byWarehouse(itemBits),
		Columns: columns(cols, text("s_data", 50)),
	}
}

func distColumn(d int) string { return fmt.Sprintf("s_dist_%02d", d) }

func loadInfoDef() tables.Def {
	return tables.Def{
		Name: TableLoadInfo, Primary: tables.Hash, Partition: byWarehouse(0),
		Columns: columns(i64("warehouses"), i64("items"), i64("customers"), i64("undelivered"), i64("c_last_constant"),
			i64("seed"), i64("loaded_at")),
	}
}

// loadInfoKey is the key of the only row of TableLoadInfo.
var loadInfoKey = tables.Num(1)

// Schema has the handles of tables, indexes and fields that the transactions use. It
// is immutable.
type Schema struct {
	catalog *tables.Catalog

	warehouse, district, customer, history, newOrder, orders, orderLine, item, stock, loadInfo *tables.Table

	byLast, byCustomer *tables.Index

	w  warehouseFields
	d  districtFields
	c  customerFields
	h  historyFields
	no newOrderFields
	o  orderFields
	ol orderLineFields
	i  itemFields
	s  stockFields
	li loadInfoFields

	last lastEntryFields // of byLast
}

type (
	addressFields   struct{ street1, street2, city, state, zip tables.Field }
	warehouseFields struct {
		id, name tables.Field
		addressFields
		tax, ytd tables.Field
	}
	districtFields struct {
		id, wID, name tables.Field
		addressFields
		tax, ytd, nextOID, nextHID tables.Field
	}
	customerFields struct {
		id, dID, wID, first, middle, last tables.Field
		addressFields
		phone, since, credit, creditLim, discount, balance tables.Field
		ytdPayment, paymentCnt, deliveryCnt, data          tables.Field
	}
	historyFields   struct{ cID, cDID, cWID, dID, wID, date, amount, data tables.Field }
	newOrderFields  struct{ oID, dID, wID tables.Field }
	orderFields     struct{ id, dID, wID, cID, entryD, carrierID, olCnt, allLocal tables.Field }
	orderLineFields struct {
		oID, dID, wID, number, iID, supplyWID, deliveryD, quantity, amount, distInfo tables.Field
	}
	itemFields  struct{ id, imID, name, price, data tables.Field }
	stockFields struct {
		iID, wID, quantity             tables.Field
		dist                           [Districts]tables.Field
		ytd, orderCnt, remoteCnt, data tables.Field
	}
	loadInfoFields  struct{ warehouses, items, customers, undelivered, cLast, seed, loadedAt tables.Field }
	lastEntryFields struct{ key, last, first tables.Field }
)

// NewSchema binds the handles to a catalogue, such as DB.Catalog. It returns
// ErrCatalog if the catalogue is not that of a Storage.
func NewSchema(c *tables.Catalog) (*Schema, error) {
	if _, err := storageOf(c); err != nil {
		return nil, err
	}
	s := &Schema{catalog: c}
	s.bindTables()
	s.bindParties()
	s.bindOrders()
	return s, nil
}

func (s *Schema) bindTables() {
	for name, t := range map[string]**tables.Table{
		TableWarehouse: &s.warehouse, TableDistrict: &s.district, TableCustomer: &s.customer,
		TableHistory: &s.history, TableNewOrder: &s.newOrder, TableOrders: &s.orders,
		TableOrderLine: &s.orderLine, TableItem: &s.item, TableStock: &s.stock, TableLoadInfo: &s.loadInfo,
	} {
		*t = s.catalog.MustTable(name)
	}
	s.byLast = s.customer.Secondary(IndexCustomerByLast)
	s.byCustomer = s.orders.Secondary(IndexOrdersByCustomer)
	s.last = lastEntryFields{s.byLast.Field(tables.PrimaryKey), s.byLast.Field("c_last"), s.byLast.Field("c_first")}
}

func bindAddress(t *tables.Table, prefix string) addressFields {
	return addressFields{
		street1: t.Field(prefix + "street_1"), street2: t.Field(prefix + "street_2"), city: t.Field(prefix + "city"),
		state: t.Field(prefix + "state"), zip: t.Field(prefix + "zip"),
	}
}

func (s *Schema) bindParties() {
	f := s.warehouse.Field
	s.w = warehouseFields{
		id: f("w_id"), name: f("w_name"), addressFields: bindAddress(s.warehouse, "w_"), tax: f("w_tax"), ytd: f("w_ytd"),
	}
	f = s.district.Field
	s.d = districtFields{
		id: f("d_id"), wID: f("d_w_id"), name: f("d_name"), addressFields: bindAddress(s.district, "d_"),
		tax: f("d_tax"), ytd: f("d_ytd"), nextOID: f("d_next_o_id"), nextHID: f("d_next_h_id"),
	}
	f = s.customer.Field
	s.c = customerFields{
		id: f("c_id"), dID: f("c_d_id"), wID: f("c_w_id"), first: f("c_first"), middle: f("c_middle"), last: f("c_last"),
		addressFields: bindAddress(s.customer, "c_"), phone: f("c_phone"), since: f("c_since"), credit: f("c_credit"),
		creditLim: f("c_credit_lim"), discount: f("c_discount"), balance: f("c_balance"), ytdPayment: f("c_ytd_payment"),
		paymentCnt: f("c_payment_cnt"), deliveryCnt: f("c_delivery_cnt"), data: f("c_data"),
	}
	f = s.history.Field
	s.h = historyFields{
		cID: f("h_c_id"), cDID: f("h_c_d_id"), cWID: f("h_c_w_id"), dID: f("h_d_id"), wID: f("h_w_id"),
		date: f("h_date"), amount: f("h_amount"), data: f("h_data"),
	}
}

func (s *Schema) bindOrders() {
	f := s.newOrder.Field
	s.no = newOrderFields{oID: f("no_o_id"), dID: f("no_d_id"), wID: f("no_w_id")}
	f = s.orders.Field
	s.o = orderFields{
		id: f("o_id"), dID: f("o_d_id"), wID: f("o_w_id"), cID: f("o_c_id"), entryD: f("o_entry_d"),
		carrierID: f("o_carrier_id"), olCnt: f("o_ol_cnt"), allLocal: f("o_all_local"),
	}
	f = s.orderLine.Field
	s.ol = orderLineFields{
		oID: f("ol_o_id"), dID: f("ol_d_id"), wID: f("ol_w_id"), number: f("ol_number"), iID: f("ol_i_id"),
		supplyWID: f("ol_supply_w_id"), deliveryD: f("ol_delivery_d"), quantity: f("ol_quantity"),
		amount: f("ol_amount"), distInfo: f("ol_dist_info"),
	}
	f = s.item.Field
	s.i = itemFields{id: f("i_id"), imID: f("i_im_id"), name: f("i_name"), price: f("i_price"), data: f("i_data")}
	f = s.stock.Field
	s.s = stockFields{
		iID: f("s_i_id"), wID: f("s_w_id"), quantity: f("s_quantity"), ytd: f("s_ytd"),
		orderCnt: f("s_order_cnt"), remoteCnt: f("s_remote_cnt"), data: f("s_data"),
	}
	for d := range s.s.dist {
		s.s.dist[d] = f(distColumn(d + 1))
	}
	f = s.loadInfo.Field
	s.li = loadInfoFields{
		warehouses: f("warehouses"), items: f("items"), customers: f("customers"), undelivered: f("undelivered"),
		cLast: f("c_last_constant"), seed: f("seed"), loadedAt: f("loaded_at"),
	}
}
