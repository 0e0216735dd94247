#include "base/option_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace ithaca {
namespace {

struct BoatSection {
  std::string name = "argo";
  std::string rig = "sloop";
  int64_t oars = 4;
  double length = 12.5;
  bool painted = true;
  std::vector<std::string> crew;
};

struct RouteSection {
  std::string from;
  int64_t stops = 0;
};

struct Voyage {
  BoatSection boat;
  RouteSection route;
};

const OptionTable<Voyage>& voyage_table() {
  static const OptionTable<Voyage> table = [] {
    OptionTable<Voyage> made;
    made.section("boat", &Voyage::boat, "what sails")
        .option("name", &BoatSection::name, {.help = "What it is called."})
        .option("rig", &BoatSection::rig,
                {.help = "Its sails.",
                 .choices = {"sloop", "ketch"},
                 .later_choices = {{"schooner", "The nearest is ketch."}}})
        .option("oars", &BoatSection::oars,
                {.help = "How many.", .unit = "oars", .example = "8", .range = {.at_least = 0, .at_most = 100}})
        .option("length", &BoatSection::length,
                {.help = "Of the hull.", .unit = "m", .range = {.above = 0, .below = 99}})
        .option("painted", &BoatSection::painted, {.help = "Whether it is."})
        .option("crew", &BoatSection::crew, {.help = "Who rows."});
    made.section("route", &Voyage::route, "where to")
        .option("from", &RouteSection::from, {.help = "The first harbour.", .example = "Troy", .required = true})
        .option("stops", &RouteSection::stops, {.help = "On the way.", .range = {.at_least = 0}});
    made.catalog().add_foreign({"rowers", "boat.oars"});
    made.catalog().add_absent({"boat", "engine_*", "The nearest is boat.oars."});
    made.rule({"boat.oars", "route.stops"}, "More stops need more oars.", [](const Voyage& voyage) -> std::string {
      return voyage.route.stops > voyage.boat.oars ? "more stops than oars" : "";
    });
    made.idle_rule("boat.painted", "A raft has no paint.", [](const Voyage& voyage) -> std::string {
      return voyage.boat.name == "raft" ? "a raft has no paint" : "";
    });
    return made;
  }();
  return table;
}

Voyage read(const std::string& text) {
  Voyage voyage;
  GivenOptions given;
  voyage_table().apply(voyage_table().catalog().read_yaml(text, "trip.yaml"), voyage, given);
  voyage_table().check(voyage, given, "trip.yaml");
  return voyage;
}

std::string error_of(const std::string& text) {
  try {
    read(text);
  } catch (const ConfigurationError& error) {
    return error.what();
  }
  return "no error";
}

std::string assignment_error(const std::string& assignment) {
  try {
    voyage_table().catalog().read_assignment(assignment);
  } catch (const ConfigurationError& error) {
    return error.what();
  }
  return "no error";
}

TEST(OptionTable, ReadsEveryType) {
  const Voyage voyage = read(
      "boat:\n  name: \"the 7 winds\"\n  rig: ketch\n  oars: 1_0\n  length: 1.25e1\n  painted: false\n"
      "  crew: [Elpenor, \"42\"]\nroute:\n  from: 12\n  stops: +3\n");
  EXPECT_EQ(voyage.boat.name, "the 7 winds");
  EXPECT_EQ(voyage.boat.rig, "ketch");
  EXPECT_EQ(voyage.boat.oars, 10);
  EXPECT_EQ(voyage.boat.length, 12.5);
  EXPECT_FALSE(voyage.boat.painted);
  EXPECT_THAT(voyage.boat.crew, testing::ElementsAre("Elpenor", "42"));
  EXPECT_EQ(voyage.route.from, "12");
  EXPECT_EQ(voyage.route.stops, 3);
}

TEST(OptionTable, DefaultsAreThoseOfTheStruct) {
  const Voyage voyage = read("boat:\nroute:\n  from: Troy\n");
  EXPECT_EQ(voyage.boat.name, "argo");
  EXPECT_EQ(voyage.boat.oars, 4);
  EXPECT_TRUE(voyage.boat.crew.empty());
}

TEST(OptionTable, WhatWasGivenWithoutAnEffectIsAnErrorAndIsNotWritten) {
  EXPECT_EQ(error_of("boat: {name: raft}\nroute: {from: Troy}\n"), "no error");
  EXPECT_EQ(error_of("boat: {name: raft, painted: true}\nroute: {from: Troy}\n"),
            "trip.yaml:1:29: a raft has no paint");
  const Voyage raft = read("boat: {name: raft}\nroute: {from: Troy}\n");
  const std::string written = voyage_table().write_yaml(raft, "");
  EXPECT_THAT(written, testing::Not(testing::HasSubstr("painted")));
  EXPECT_THAT(written, testing::HasSubstr("oars: 4\n"));
  EXPECT_EQ(voyage_table().write_yaml(read(written), ""), written);
  EXPECT_THAT(voyage_table().write_yaml(Voyage(), ""), testing::HasSubstr("painted"));
}

TEST(OptionTable, TextsAboutAnOptionGetThePlaceWhereItWasGiven) {
  GivenOptions given;
  given.add("boat.oars", "trip.yaml:3:9");
  given.add("boat.rig", "--set boat.rig=ketch");
  EXPECT_EQ(given.located("boat.oars 7: too many"), "trip.yaml:3:9: boat.oars 7: too many");
  EXPECT_EQ(given.located("boat.oars: too many"), "trip.yaml:3:9: boat.oars: too many");
  EXPECT_EQ(given.located("boat.oarsmen: too many"), "boat.oarsmen: too many");
  EXPECT_EQ(given.located("boat.crew: too few"), "boat.crew: too few");
  EXPECT_EQ(given.located("boat.crew: too few", {"boat.name", "boat.rig", "boat.oars"}),
            "--set boat.rig=ketch: boat.crew: too few");
  EXPECT_EQ(given.located(given.located("boat.oars: too many")), "trip.yaml:3:9: boat.oars: too many");
  EXPECT_EQ(given.located("trip.yaml:3:9: boat.oars: too many", {"boat.rig"}), "trip.yaml:3:9: boat.oars: too many");
  EXPECT_EQ(given.located(""), "");
  try {
    with_places(given, [] { throw ConfigurationError("boat.rig: torn"); });
    FAIL() << "nothing was thrown";
  } catch (const ConfigurationError& error) {
    EXPECT_STREQ(error.what(), "--set boat.rig=ketch: boat.rig: torn");
  }
}

TEST(OptionTable, TagsAndDeepNestingAreErrorsWithAPlace) {
  const std::string rest = "\nroute: {from: Troy}\n";
  EXPECT_THAT(error_of("boat:\n  oars: !foo 2" + rest), testing::StartsWith("trip.yaml:2:9: the YAML tag !foo has no"));
  EXPECT_THAT(error_of("boat:\n  oars: !!str 2" + rest), testing::StartsWith("trip.yaml:2:9: the YAML tag !!str has"));
  EXPECT_THAT(error_of("boat:\n  crew: [a, !x b]" + rest), testing::HasSubstr("tag !x"));
  EXPECT_THAT(error_of("boat: !x {oars: 2}" + rest), testing::HasSubstr("tag !x"));
  EXPECT_EQ(error_of("boat: {crew: ['a', \"b\", c], name: '2'}" + rest), "no error");
  EXPECT_THAT(assignment_error("boat.crew=[a, !x b]"), testing::HasSubstr("is a list of strings"));
  for (const char bracket : {'[', '{'}) {
    const std::string error = error_of("boat: " + std::string(5000, bracket));
    EXPECT_THAT(error, testing::AllOf(testing::StartsWith("trip.yaml:"), testing::HasSubstr("nested too deeply")));
  }
}

TEST(OptionTable, ASectionInCapitalsIsMeantAsASection) {
  EXPECT_EQ(error_of("Boat: {oars: 2}\n"), "trip.yaml:1:1: there is no section \"Boat\"; did you mean \"boat\"?");
}

TEST(OptionTable, ASingleStringIsAListOfOne) {
  EXPECT_THAT(read("boat: {crew: Baios}\nroute: {from: Troy}\n").boat.crew, testing::ElementsAre("Baios"));
}

TEST(OptionTable, UnknownNamesSayWhereAndWhatIsNearest) {
  EXPECT_EQ(error_of("boat:\n  oarz: 3\n"),
            "trip.yaml:2:3: section \"boat\" has no option \"oarz\"; did you mean \"oars\"?");
  EXPECT_EQ(error_of("boat:\n  fuel: 3\n"),
            "trip.yaml:2:3: section \"boat\" has no option \"fuel\"; it has name, rig, oars, length, painted, crew");
  EXPECT_EQ(error_of("boat:\n  stops: 3\n"), "trip.yaml:2:3: \"stops\" belongs to section \"route\", not to \"boat\"");
  EXPECT_EQ(error_of("boat:\n  stopps: 3\n"),
            "trip.yaml:2:3: section \"boat\" has no option \"stopps\"; did you mean route.stops?");
  EXPECT_EQ(error_of("\nboot:\n  oars: 3\n"), "trip.yaml:2:1: there is no section \"boot\"; did you mean \"boat\"?");
  EXPECT_EQ(error_of("weather: 3\n"), "trip.yaml:1:1: there is no section \"weather\"; the sections are boat, route");
  EXPECT_EQ(error_of("oars: 3\n"), "trip.yaml:1:1: \"oars\" belongs into a section: boat.oars");
}

TEST(OptionTable, ForeignAndAbsentNamesAreExplained) {
  EXPECT_EQ(error_of("boat:\n  rowers: 3\n"), "trip.yaml:2:3: \"rowers\" is boat.oars here");
  EXPECT_EQ(error_of("route:\n  Rowers: 3\n"), "trip.yaml:2:3: \"Rowers\" is boat.oars here");
  EXPECT_EQ(error_of("boat:\n  engine_power: 3\n"),
            "trip.yaml:2:3: this version does not have boat.engine_power. The nearest is boat.oars.");
  EXPECT_EQ(error_of("route:\n  engine_power: 3\n"),
            "trip.yaml:2:3: this version does not have engine_power (of section \"boat\"). The nearest is boat.oars.");
  EXPECT_EQ(error_of("boat:\n  rig: schooner\n"),
            "trip.yaml:2:8: this version does not have boat.rig: schooner. The nearest is ketch.");
}

TEST(OptionTable, AllMistakesAreToldAtOnceAndNoneFollowsFromAnother) {
  const std::string text =
      "boat:\n  oarz: 3\n  length: long\n  rowers: 4\nroute:\n  stops: -1\n  from: [a, b]\nweather: fine\n";
  OptionMistakes mistakes;
  Voyage voyage;
  GivenOptions given;
  voyage_table().apply(voyage_table().catalog().read_yaml(text, "trip.yaml", mistakes), voyage, given);
  voyage_table().check(voyage, given, "trip.yaml", mistakes);
  try {
    mistakes.throw_if_any();
    FAIL() << "mistakes were not thrown";
  } catch (const ConfigurationMistakes& error) {
    EXPECT_THAT(error.lines(),
                testing::ElementsAre("trip.yaml:2:3: section \"boat\" has no option \"oarz\"; did you mean \"oars\"?",
                                     "trip.yaml:3:11: boat.length must be a number, but \"long\" is not one",
                                     "trip.yaml:4:3: \"rowers\" is boat.oars here",
                                     "trip.yaml:6:10: route.stops must be at least 0, but it is -1",
                                     "trip.yaml:7:9: route.from must be a string, but this is a list",
                                     "trip.yaml:8:1: there is no section \"weather\"; the sections are boat, route"));
  }
  EXPECT_TRUE(mistakes.concern("boat.oars"));
  EXPECT_TRUE(mistakes.concern("route.from")) << "it was given, so it is not missing too";
  EXPECT_FALSE(mistakes.concern("boat.name"));
}

TEST(OptionTable, OneMistakeIsAnOrdinaryError) {
  OptionMistakes mistakes;
  EXPECT_NO_THROW(mistakes.throw_if_any());
  mistakes.add("one");
  mistakes.add("one");
  try {
    mistakes.throw_if_any();
    FAIL() << "the mistake was not thrown";
  } catch (const ConfigurationMistakes&) {
    FAIL() << "one mistake is not several";
  } catch (const ConfigurationError& error) {
    EXPECT_STREQ(error.what(), "one");
  }
}

TEST(OptionTable, NamesOfOtherProgramsHaveRemarksAndTables) {
  OptionCatalog catalog;
  catalog.add_section({"boat", "what sails"});
  Option oars;
  oars.section = "boat";
  oars.name = "oars";
  oars.type = OptionType::integer;
  oars.default_value = int64_t{4};
  catalog.add_option(oars);
  catalog.add_absent({"boat", "engine", "The nearest is boat.oars."});
  catalog.add_foreign({"rowers", "boat.oars", "two to a bench", "trireme galley"});
  catalog.add_foreign({"motor", "boat.engine", "", "ferry"});
  catalog.add_foreign({"fuel_*", "", "the wind is free", "ferry"});
  const auto error = [&](const std::string& name) -> std::string {
    try {
      catalog.read_yaml("boat:\n  " + name + ": 1\n", "x");
    } catch (const ConfigurationError& fault) {
      return fault.what();
    }
    return "no error";
  };
  EXPECT_EQ(error("rowers"), "x:2:3: \"rowers\" is boat.oars here; two to a bench");
  EXPECT_EQ(error("motor"),
            "x:2:3: \"motor\" would be boat.engine, which this version does not have. The nearest is boat.oars.");
  EXPECT_EQ(error("fuel_kind"), "x:2:3: \"fuel_kind\" has no counterpart here: the wind is free");
  EXPECT_EQ(catalog.foreign_markdown("galley"), "| `rowers` | boat.oars; two to a bench |\n");
  EXPECT_EQ(catalog.foreign_markdown("ferry"),
            "| `motor` | boat.engine (not in this version) |\n| `fuel_*` | nothing: the wind is free |\n");
  EXPECT_EQ(catalog.foreign_markdown("canoe"), "");
  EXPECT_THROW(catalog.add_foreign({"rowers", "boat.oars"}), ContractError);
  EXPECT_THROW(catalog.add_foreign({"sail", ""}), ContractError);
}

TEST(OptionTable, TheManualPageHasEveryOption) {
  const std::string text = voyage_table().catalog().man_text();
  EXPECT_THAT(text, testing::HasSubstr(".SS boat: what sails\n"));
  EXPECT_THAT(text, testing::HasSubstr(".TP\n.B boat.oars\nInteger, at least 0 and at most 100, in oars.\n"
                                       "How many.\nDefault: 4.\nExample: oars: 8\n"));
  EXPECT_THAT(text, testing::HasSubstr("The first harbour.\nRequired.\n"));
}

TEST(OptionTable, DuplicatesAreErrors) {
  EXPECT_EQ(error_of("boat:\n  oars: 3\n  oars: 4\n"),
            "trip.yaml:3:3: boat.oars is there twice; the first time at trip.yaml:2:3");
  EXPECT_EQ(error_of("boat:\n  oars: 3\nboat:\n  rig: ketch\n"),
            "trip.yaml:3:1: section \"boat\" is there twice; the first time at trip.yaml:1:1");
}

TEST(OptionTable, WrongTypesAreErrors) {
  EXPECT_EQ(error_of("boat:\n  oars: four\n"), "trip.yaml:2:9: boat.oars must be an integer, but \"four\" is not one");
  EXPECT_EQ(error_of("boat:\n  oars: 1e1\n"),
            "trip.yaml:2:9: boat.oars must be an integer, but \"1e1\" is not one; write 10");
  EXPECT_EQ(error_of("boat:\n  oars: 2.5\n"), "trip.yaml:2:9: boat.oars must be an integer, but \"2.5\" is not one");
  EXPECT_EQ(error_of("boat:\n  oars: 010\n"),
            "trip.yaml:2:9: boat.oars must be an integer, but \"010\" is not one; write 10");
  EXPECT_EQ(error_of("boat:\n  oars: 9223372036854775808\n"),
            "trip.yaml:2:9: boat.oars 9223372036854775808 is too large for a 64-bit integer");
  EXPECT_EQ(error_of("boat:\n  oars: \"4\"\n"),
            "trip.yaml:2:9: boat.oars must be an integer, at least 0 and at most 100, in oars, but \"4\" in "
            "quotes is a string; leave the quotes out");
  EXPECT_EQ(error_of("boat:\n  oars: [4]\n"),
            "trip.yaml:2:9: boat.oars must be an integer, at least 0 and at most 100, in oars, but this is a list");
  EXPECT_EQ(error_of("boat:\n  length: long\n"),
            "trip.yaml:2:11: boat.length must be a number, but \"long\" is not one");
  EXPECT_EQ(error_of("boat:\n  length: 1e999\n"), "trip.yaml:2:11: boat.length 1e999 cannot be held by a double");
  for (const char* special : {"nan", ".nan", ".NaN", "inf", "-.inf"}) {
    EXPECT_EQ(error_of(std::string("boat:\n  length: ") + special + "\n"),
              std::string("trip.yaml:2:11: boat.length must be a finite number, but \"") + special + "\" is not one");
  }
  EXPECT_EQ(error_of("boat:\n  painted: yes\n"),
            "trip.yaml:2:12: boat.painted must be true or false, but it is \"yes\"; write true");
  EXPECT_EQ(error_of("boat:\n  painted: maybe\n"),
            "trip.yaml:2:12: boat.painted must be true or false, but it is \"maybe\"");
  EXPECT_EQ(error_of("boat:\n  crew: [a, [b]]\n"),
            "trip.yaml:2:13: boat.crew is a list of strings, but this element is a list");
  EXPECT_EQ(error_of("boat:\n  crew: [a, \"\"]\n"), "trip.yaml:2:9: boat.crew has an empty element");
  EXPECT_EQ(
      error_of("boat:\n  oars:\n"),
      "trip.yaml:2:3: boat.oars has no value; it is an integer, at least 0 and at most 100, in oars. Leave the line "
      "out for the default");
}

TEST(OptionTable, ValuesOutsideOfTheirRangeAreErrors) {
  EXPECT_EQ(error_of("boat:\n  oars: -1\n"),
            "trip.yaml:2:9: boat.oars must be at least 0 and at most 100, but it is -1");
  EXPECT_EQ(error_of("boat:\n  length: 0\n"), "trip.yaml:2:11: boat.length must be above 0 and below 99, but it is 0");
  EXPECT_EQ(error_of("boat:\n  length: 99\n"),
            "trip.yaml:2:11: boat.length must be above 0 and below 99, but it is 99");
  EXPECT_EQ(error_of("boat:\n  rig: slop\n"),
            "trip.yaml:2:8: boat.rig cannot be \"slop\"; it is one of sloop, ketch. Did you mean \"sloop\"?");
  EXPECT_EQ(error_of("boat:\n  rig: raft\n"), "trip.yaml:2:8: boat.rig cannot be \"raft\"; it is one of sloop, ketch");
}

TEST(OptionTable, WrongShapesAreErrors) {
  EXPECT_EQ(error_of("- a\n- b\n"),
            "trip.yaml:1:1: a recipe is a map of sections (\"model:\", \"data:\", ...), but this is a list");
  EXPECT_EQ(
      error_of("boat: 3\n"),
      "trip.yaml:1:1: section \"boat\" must hold lines \"name: value\", but it holds a single value; below \"boat:\", "
      "indented, goes for example \"name: 3\"");
  EXPECT_EQ(error_of("boat:\n  oars: 3\n---\nroute:\n  from: Troy\n"),
            "trip.yaml:4:1: a recipe is one YAML document, but here a second one begins");
  EXPECT_EQ(error_of("? [a]\n: b\n"), "trip.yaml:1:3: a name is expected here, but this is a list");
}

TEST(OptionTable, BrokenYamlSaysWhere) {
  EXPECT_THAT(error_of("boat:\n  oars: [3\nroute:\n"), testing::StartsWith("trip.yaml:3:"));
  EXPECT_THAT(error_of("boat:\n\toars: 3\n"), testing::HasSubstr("YAML forbids tabs there"));
  EXPECT_THAT(error_of("boat: {oars: 3}}\n"), testing::HasSubstr("this is not valid YAML"));
  // In which yaml-cpp finds one empty document after another, without end.
  EXPECT_THAT(error_of("!boat.oars,  path\xff\xff\xff"
                       "a.tring_size:r,  path:!as\n"),
              testing::HasSubstr("here a second one begins"));
}

TEST(OptionTable, MissingRequiredOptionsAreErrors) {
  const std::string expected =
      "trip.yaml: route.from is missing. The first harbour. For example: \"route:\", then \"  from: Troy\"";
  EXPECT_EQ(error_of(""), expected);
  EXPECT_EQ(error_of("boat:\n  oars: 3\n"), expected);
  EXPECT_EQ(error_of("route:\n  from: \"\"\n"),
            "trip.yaml:2:9: route.from is missing. The first harbour. For example: \"route:\", then \"  from: Troy\"");
}

TEST(OptionTable, BrokenRulesNameTheGivenOption) {
  EXPECT_EQ(error_of("boat:\n  oars: 2\nroute:\n  from: Troy\n  stops: 3\n"), "trip.yaml:2:9: more stops than oars");
  EXPECT_EQ(error_of("route:\n  from: Troy\n  stops: 5\n"), "trip.yaml:3:10: more stops than oars");
}

TEST(OptionTable, AssignmentsAreReadLikeYaml) {
  const OptionCatalog& catalog = voyage_table().catalog();
  EXPECT_EQ(std::get<int64_t>(catalog.read_assignment("boat.oars=12").value), 12);
  EXPECT_EQ(std::get<std::string>(catalog.read_assignment("boat.name=a: b = c #").value), "a: b = c #");
  EXPECT_EQ(std::get<std::string>(catalog.read_assignment("boat.name=").value), "");
  EXPECT_THAT(std::get<std::vector<std::string>>(catalog.read_assignment("boat.crew=[a, \"b c\"]").value),
              testing::ElementsAre("a", "b c"));
  EXPECT_THAT(std::get<std::vector<std::string>>(catalog.read_assignment("boat.crew=a b").value),
              testing::ElementsAre("a b"));
  EXPECT_EQ(catalog.read_assignment("boat.oars=12").where, "--set boat.oars=12");
}

TEST(OptionTable, WrongAssignmentsAreErrors) {
  EXPECT_EQ(assignment_error("boat.oars"),
            "--set boat.oars: this must be section.name=value, for example train.max_steps=100");
  EXPECT_EQ(assignment_error("=3"), "--set =3: this must be section.name=value, for example train.max_steps=100");
  EXPECT_EQ(assignment_error("oars=3"), "--set oars=3: \"oars\" belongs into a section: boat.oars");
  EXPECT_EQ(assignment_error("boat=3"), "--set boat=3: \"boat\" is a section; name an option of it: boat.name=...");
  EXPECT_EQ(assignment_error("bat.oars=3"), "--set bat.oars=3: there is no section \"bat\"; did you mean \"boat\"?");
  EXPECT_EQ(assignment_error("boat.oar=3"),
            "--set boat.oar=3: section \"boat\" has no option \"oar\"; did you mean \"oars\"?");
  EXPECT_EQ(assignment_error("boat.oars="),
            "--set boat.oars=: boat.oars has no value; it is an integer, at least 0 and at most 100, in oars");
  EXPECT_EQ(assignment_error("boat.oars=101"),
            "--set boat.oars=101: boat.oars must be at least 0 and at most 100, but it is 101");
  EXPECT_EQ(assignment_error("boat.crew=[a, {b: c}]"),
            "--set boat.crew=[a, {b: c}]: boat.crew is a list of strings: [first, second]");
}

TEST(OptionTable, WhatIsWrittenIsReadBack) {
  Voyage voyage;
  voyage.boat.name = "say \"hi\"\n\tto: #C:\\sea, \xC3\xA9toile \x01";
  voyage.boat.length = 0.1 + 0.2;
  voyage.boat.crew = {"true", "1e5", "null", "~", "a, b", "plain-name.txt", "/abs/path", "- x", "y"};
  voyage.route.from = "007";
  voyage.route.stops = 3;
  const std::string text = voyage_table().write_yaml(voyage, "first line\nsecond line");
  EXPECT_THAT(text, testing::StartsWith("# first line\n# second line\nboat:\n"));
  const Voyage back = read(text);
  EXPECT_EQ(back.boat.name, voyage.boat.name);
  EXPECT_EQ(back.boat.length, voyage.boat.length);
  EXPECT_EQ(back.boat.crew, voyage.boat.crew);
  EXPECT_EQ(back.route.from, voyage.route.from);
  EXPECT_EQ(back.route.stops, voyage.route.stops);
}

TEST(OptionTable, ExtremeRealsAreWrittenExactly) {
  for (const double value : {1e-5, 1.0 / 3.0, 98.99999999999999, std::numeric_limits<double>::denorm_min(), 3.0}) {
    Voyage voyage;
    voyage.boat.length = value;
    voyage.route.from = "Troy";
    EXPECT_EQ(read(voyage_table().write_yaml(voyage, "")).boat.length, value);
  }
}

TEST(OptionTable, HelpNamesEveryOptionWithinTheWidth) {
  const std::string help = voyage_table().catalog().help_text(60);
  for (const Option& option : voyage_table().catalog().options()) {
    EXPECT_THAT(help, testing::HasSubstr(option.full_name() + ": "));
  }
  EXPECT_THAT(help, testing::HasSubstr("boat.oars: integer, at least 0 and at most 100, in oars"));
  EXPECT_THAT(help, testing::HasSubstr("default 4; example oars: 8"));
  EXPECT_THAT(help, testing::HasSubstr("required"));
  EXPECT_THAT(voyage_table().catalog().help_text_of("oars"), testing::StartsWith("  boat.oars: "));
  EXPECT_THROW(voyage_table().catalog().help_text_of("boat.oarz"), ConfigurationError);
  EXPECT_THROW(voyage_table().catalog().help_text_of("oarz"), ConfigurationError);
}

TEST(OptionTable, ThePageHasOptionsAndRules) {
  const std::string page = voyage_table().catalog().markdown();
  EXPECT_THAT(page, testing::HasSubstr("| `oars` | integer, at least 0 and at most 100, in oars | `4` | How many. "
                                       "Example: `oars: 8` |"));
  EXPECT_THAT(page, testing::HasSubstr("- More stops need more oars.\n"));
  EXPECT_THAT(page, testing::HasSubstr("| `boat.rig: schooner` | The nearest is ketch. |"));
}

TEST(OptionTable, NanInAValueSetByAProgramIsFound) {
  Voyage voyage;
  voyage.route.from = "Troy";
  voyage.boat.length = std::nan("");
  EXPECT_THROW(voyage_table().check(voyage, GivenOptions(), "trip.yaml"), ConfigurationError);
}

}  // namespace
}  // namespace ithaca
